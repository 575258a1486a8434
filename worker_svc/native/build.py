"""Build: compiles the kernels for every kind of machine, for images that carry no compiler.

`python -m tetrad.worker_svc.native.build [--target NAME ...]` writes into the installed package, where library.py looks first.
Knows nothing of the machine that it runs on, other than that its processor is of the same family.
"""

import argparse
import sys
from collections.abc import Sequence

from tetrad.worker_svc.native.library import NoLibraryError, compile_library, prebuilt_dir, targets


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile and name the files, a line each; return the exit status."""
    names = [target.name for target in targets()]
    parser = argparse.ArgumentParser(prog="python -m tetrad.worker_svc.native.build", description=__doc__)
    known = f"one of {', '.join(names)}; default: all"
    parser.add_argument("--target", action="append", choices=names, metavar="NAME", help=known)
    chosen = parser.parse_args(arguments).target or names
    for target in targets():
        if target.name not in chosen:
            continue
        try:
            path = compile_library(target, prebuilt_dir())
        except (NoLibraryError, OSError) as error:
            sys.stderr.write(f"{target.name}: {error}\n")
            return 1
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
