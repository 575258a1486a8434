"""The `tetrad` command: finds the subcommand and runs it.

Errors are one line on stderr that says what to do; exit codes are those of services/process.py (78: trying again cannot help),
2 for a wrong command line. Each subcommand is imported only when it is asked for.
"""

import contextlib
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module

from tetrad.services.errors import TetradError
from tetrad.services.extras import missing_packages
from tetrad.services.process import exit_code_of
from tetrad.services.version import VERSION

_SERVICES = {
    "frontend": ("tetrad.frontend", "one frontend: HTTP and the public gRPC API"),
    "tokenizer": ("tetrad.tokenizer_svc", "one tokenizer"),
    "engine-core": ("tetrad.engine_core_svc", "one engine core"),
    "worker": ("tetrad.worker_svc", "one worker"),
}
_COMMANDS = {
    "serve": ("tetrad.cli.serve", "everything on this machine, behind an OpenAI API"),
    "status": ("tetrad.cli.status", "what runs where, its health and load"),
    "chat": ("tetrad.cli.chat", "talk to a running server"),
    "run-batch": ("tetrad.cli.run_batch", "answer every request of an OpenAI batch file"),
    "bench": ("tetrad.cli.bench", "measure a server under load; trace where a step's time goes"),
    "profile": ("tetrad.cli.profile", "record what a running server does, for Perfetto"),
    "complete": ("tetrad.cli.complete", "let a running server continue a text"),
}

_CLIENTS = ("status", "chat", "complete", "profile")

Run = Callable[[list[str]], int]
"""A subcommand: takes its arguments, returns the exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        print(_usage())
        return 0
    if name in ("-V", "--version"):
        print(f"tetrad {VERSION}")
        return 0
    if name in _SERVICES:
        return _run(lambda rest: _run_service(name, rest), arguments[1:])
    if name not in _COMMANDS:
        print(f"tetrad: there is no command {name!r}; `tetrad --help` lists them", file=sys.stderr)
        return 2
    return _run(lambda rest: _run_command(name, rest), arguments[1:])


def _run_command(name: str, arguments: list[str]) -> int:
    with _extra_named(name, "cli" if name in _CLIENTS else "all"):
        module = import_module(_COMMANDS[name][0])
    return int(module.run(arguments))


@contextlib.contextmanager
def _extra_named(name: str, extra: str) -> Iterator[None]:
    """Turn the lack of a package into one line that names the extra; a module of ours that is missing is a bug."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module in ("", "tetrad"):
            raise
        raise missing_packages(f"tetrad {name}", (module,), extra) from error


def _run(run: Run, arguments: list[str]) -> int:
    try:
        return run(arguments)
    except TetradError as error:
        print(f"tetrad: {error.message}", file=sys.stderr)
        return exit_code_of(error)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `tetrad status | head`: nobody reads any more
        sys.stderr.close()
        return 0


def _run_service(name: str, arguments: list[str]) -> int:
    """Become the service: its module reads the arguments and ends the process."""
    package = _SERVICES[name][0]
    sys.argv = [package, *arguments]
    with _extra_named(name, name):
        runpy.run_module(package, run_name="__main__", alter_sys=True)
    return 0


def _usage() -> str:
    rows = [*((name, text) for name, (_, text) in _COMMANDS.items()), *((name, text) for name, (_, text) in _SERVICES.items())]
    lines = [f"  {name:<12} {text}" for name, text in rows]
    return "\n".join(
        ["usage: tetrad COMMAND [OPTIONS]", "", *lines, "", "`tetrad COMMAND --help` shows options, defaults and units."]
    )
