"""Forks: a process that imports the modules of Tetrad's commands once, and runs each command in a fork of itself.

Tests start `python -m tests.tetrad.cli.forks` and write one command per line to its stdin, as JSON; it writes each exit code to
stdout (client: commands.py). A command runs as in a new process, without the time of the imports, which is most of it.
"""

import gc
import importlib
import json
import os
import signal
import sys
from typing import Any

from tetrad.cli import _COMMANDS, main

_TIMEOUT_S = 60
_LATER = ("tetrad.library.engine_args", "tetrad.services.process", "tetrad.stack.local_stack")
"""Modules that commands import when they run."""


def _serve() -> None:
    for name in (*(module for module, _ in _COMMANDS.values()), *_LATER):
        importlib.import_module(name)
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _run(json.loads(line))
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


def _run(command: dict[str, Any]) -> None:
    signal.alarm(_TIMEOUT_S)
    os.environ.clear()
    os.environ.update(command["variables"])
    os.chdir(command["directory"])
    for number, path in enumerate((os.devnull, command["stdout"], command["stderr"])):
        file = os.open(path, os.O_RDWR)
        os.dup2(file, number)
        os.close(file)
    sys.argv = ["tetrad", *command["arguments"]]
    sys.exit(main())


if __name__ == "__main__":
    _serve()
