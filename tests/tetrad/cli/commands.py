"""Runs `tetrad` as a process."""

import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path


def tetrad(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that is forked from one with its imports; see forks.py."""
    forks = _forks()
    with tempfile.NamedTemporaryFile() as stdout, tempfile.NamedTemporaryFile() as stderr:
        files = {"stdout": stdout.name, "stderr": stderr.name}
        command = {"arguments": arguments, "variables": dict(os.environ), "directory": str(Path.cwd()), **files}
        forks.stdin.write(f"{json.dumps(command)}\n")
        forks.stdin.flush()
        code = int(forks.stdout.readline())
        return subprocess.CompletedProcess(arguments, code, *(Path(name).read_text() for name in files.values()))


def assert_one_line(result: subprocess.CompletedProcess[str], *words: str) -> None:
    assert result.returncode != 0
    assert result.stderr.count("\n") == 1, result.stderr
    assert all(word in result.stderr for word in words), result.stderr


def end_forks() -> None:
    """End the process that forks, if it runs."""
    if _forks.cache_info().currsize:
        forks = _forks()
        forks.stdin.close()
        forks.wait(timeout=60)
        forks.stdout.close()
        _forks.cache_clear()


@cache
def _forks() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.tetrad.cli.forks"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
