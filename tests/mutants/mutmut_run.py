"""MutmutRun: mutmut's commands in a tree, and what they say."""

import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

_ALIVE = ("survived", "no tests")


@dataclass(frozen=True)
class Survivor:
    """A planted bug that no test found: the line as it is, and as it was made."""

    name: str
    file: str
    line: str
    becomes: str


class MutmutRun:
    """One group's bugs.

    Args:
        directory: a tree; see tree.py.
        jobs: tests that run side by side.
    """

    def __init__(self, directory: Path, jobs: int) -> None:
        self._directory = directory
        self._jobs = jobs

    def plant(self) -> list[str]:
        """Make all mutants and return their names."""
        # mutmut has no command for that alone: one that is to run nothing does it.
        output = self._mutmut("run", "nothing matches this")
        names = list(self.results())
        if not names:
            raise RuntimeError(f"mutmut made no mutants:\n{output[-4000:]}")
        return names

    def run(self, names: Collection[str]) -> None:
        """Look for these mutants; RuntimeError if the tests do not even run."""
        output = self._mutmut("run", "--max-children", str(self._jobs), *names)
        if not self.looked_for():
            raise RuntimeError(f"mutmut ran no test:\n{output[-4000:]}")

    def results(self) -> dict[str, str]:
        """Return what became of each mutant."""
        lines = self._mutmut("results", "--all", "true").splitlines()
        pairs = (line.strip().rpartition(": ") for line in lines if "__mutmut_" in line)
        return {name: status for name, _, status in pairs}

    def looked_for(self) -> list[str]:
        """Return the mutants for which tests have run, or that no test reaches."""
        return [name for name, status in self.results().items() if status != "not checked"]

    def survivors(self) -> list[Survivor]:
        """Return the mutants that no test found."""
        return [self._survivor(name) for name, status in self.results().items() if status in _ALIVE]

    def _survivor(self, name: str) -> Survivor:
        _, new, *changes = [line for line in self._mutmut("show", name).splitlines() if line[:1] in ("-", "+")]
        line, becomes = (" ".join(each[1:].strip() for each in changes if each[0] == sign) for sign in "-+")
        return Survivor(name, new.removeprefix("+++ tetrad/"), line, becomes)

    def _mutmut(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "mutmut", *arguments]
        done = subprocess.run(command, cwd=self._directory, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr
