"""Puts mutmut's mutants into files: `python plant.py FILE ...` in a tree (tree.py), which has mutmut's settings.

Prints JSON: for each file and mutant, the lines of the function as it was and of the mutant. Imports nothing of this
repository: mutmut has packages of its own.
"""

import json
import sys
from pathlib import Path

from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.utils.format_utils import get_mutant_name, mangled_name_from_mutant_name


def main() -> None:
    """Rewrite the files."""
    found = {}
    for path in map(Path, sys.argv[1:]):
        mutated = mutate_file_contents(str(path), path.read_text())
        path.write_text(mutated.code)
        spans = {name: [span.start, span.end] for name, span in mutated.line_span_by_function_name.items()}
        found[str(path)] = {
            get_mutant_name(path, name): (spans[f"{mangled_name_from_mutant_name(name)}__mutmut_orig"], spans[name])
            for name in mutated.mutant_names
        }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
