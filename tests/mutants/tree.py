"""Tree: a copy of the engine core and its tests, in which each function stands beside its planted bugs.

The bugs are mutmut's. It finds modules by their paths, so the links in tetrad/ become folders.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

from tests.mutants.groups import PACKAGE, TESTS, Group

ROOT = Path(__file__).parents[2]
_COPIED = ("tetrad", TESTS, "pyproject.toml", *(path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/*.py")))
_JUNK = shutil.ignore_patterns("__pycache__", ".*_cache")
_PLANT = Path(__file__).with_name("plant.py")
# What is said to people is not what is tested here: logs, texts of errors, help of metrics.
_SETTINGS = """\
[mutmut]
source_paths=tetrad
do_not_mutate_patterns=
    ^\\s*log\\.
    ^\\s*raise \\w
    fault\\(
    ^\\s*text \\+?=
"""


@dataclass(frozen=True)
class Bug:
    """One planted bug: the line as it is, and as it was made."""

    name: str
    file: str
    line: str
    becomes: str


class Tree:
    """A group's files and tests.

    Args:
        group: see groups.py.
        directory: an empty one.
    """

    def __init__(self, group: Group, directory: Path) -> None:
        self.directory = directory
        for name in _COPIED:
            source, target = ROOT / name, directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=_JUNK)
            else:
                shutil.copy(source, target)
        (directory / "setup.cfg").write_text(_SETTINGS)
        self._files = [path.relative_to(directory) for each in group.files for path in sorted((directory / PACKAGE).glob(each))]

    @property
    def environment(self) -> dict[str, str]:
        """Return variables with which Python imports the tree's packages."""
        path = os.pathsep.join(each for each in (str(self.directory), os.environ.get("PYTHONPATH")) if each)
        return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}

    def plant(self) -> list[Bug]:
        """Put all bugs beside their functions; RuntimeError if mutmut fails."""
        command = [sys.executable, str(_PLANT), *map(str, self._files)]
        done = subprocess.run(command, cwd=self.directory, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"mutmut planted nothing:\n{done.stderr[-4000:]}")
        return [bug for file, found in json.loads(done.stdout).items() for bug in self._bugs(Path(file), found)]

    def _bugs(self, file: Path, found: dict[str, list[list[int]]]) -> Iterator[Bug]:
        lines = (self.directory / file).read_text().splitlines()
        for name, spans in found.items():
            whole, mutant = (lines[first - 1 : last] for first, last in spans)
            line, becomes = _difference(whole, mutant)
            yield Bug(name, file.relative_to("tetrad").as_posix(), line, becomes)


def _difference(whole: list[str], mutant: list[str]) -> tuple[str, str]:
    """Return the lines that differ between a function and its mutant, whose generated names differ as well."""
    whole, mutant = ([line for line in lines if line.strip()] for lines in (whole, mutant))
    names = [line.partition("def ")[2].partition("(")[0] for line in (_head(whole), _head(mutant))]
    plain = names[0].removesuffix("__mutmut_orig").removeprefix("x_").rpartition("ǁ")[2]
    named = zip(names, (whole, mutant), strict=True)
    texts = [[line.replace(f"def {name}(", f"def {plain}(") for line in lines] for name, lines in named]
    changes = [line for line in unified_diff(*texts, lineterm="", n=0) if line[:1] in "+-" and line[:3] not in ("---", "+++")]
    line, becomes = (" ".join(each[1:].strip() for each in changes if each[0] == sign) for sign in "-+")
    return line, becomes


def _head(lines: list[str]) -> str:
    return next(line for line in lines if line.lstrip().startswith(("def ", "async def ")))
