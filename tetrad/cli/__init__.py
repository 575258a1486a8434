"""The `tetrad` command: finds the subcommand and runs it.

An error is one line on stderr that says what to do; exit codes are those of services/process.py (78: a retry cannot help), and
2 for an invalid command line. Each subcommand is imported only when it runs, so that `tetrad --help` takes 0.07 s. The parsers
are argparse's: importing typer and rich takes 0.13 s more, and typer also needs the options of all subcommands.
"""

import contextlib
import difflib
import errno
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module

from tetrad.services.errors import TetradError
from tetrad.services.packages import missing_packages
from tetrad.services.timers.garbage import no_search
from tetrad.services.version import VERSION

_GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Serve and use": {
        "serve": ("tetrad.cli.serve", "serve a model with an OpenAI-compatible API"),
        "chat": ("tetrad.cli.chat", "chat with the model of a running server"),
        "complete": ("tetrad.cli.complete", "continue a text with the model of a running server"),
        "transcribe": ("tetrad.cli.transcribe", "write what is said in a recording"),
        "run-batch": ("tetrad.cli.run_batch", "answer every request of an OpenAI batch file"),
    },
    "Models": {
        "pull": ("tetrad.cli.models.pull", "download a model"),
        "list": ("tetrad.cli.models.list_models", "list the downloaded models, and which of them run here"),
        "show": ("tetrad.cli.models.show", "show what a model is, and the memory that it needs"),
        "plan": ("tetrad.cli.planning.plan", "show memory and speed of each split of a model over GPUs"),
    },
    "Look": {
        "ps": ("tetrad.cli.servers.ps", "list the running servers of this machine"),
        "status": ("tetrad.cli.status", "show services, health and load of servers"),
        "logs": ("tetrad.cli.servers.logs", "show what a running server's services wrote"),
    },
    "Measure": {
        "bench": ("tetrad.cli.bench", "measure latency and throughput of a server, or compare two"),
        "profile": ("tetrad.cli.profile", "record a profile of a running server, for Perfetto"),
    },
    "Shell": {
        "completion": ("tetrad.cli.completion", "print a script that completes this command's words in a shell"),
    },
}
_SERVICES_TITLE = "Services, one by one"
_SERVICES = {
    "frontend": ("tetrad.frontend", "run a frontend: HTTP and the public gRPC API"),
    "tokenizer": ("tetrad.tokenizer_svc", "run a tokenizer service"),
    "engine-core": ("tetrad.engine_core_svc", "run an engine core"),
    "worker": ("tetrad.worker_svc", "run a worker"),
}
_COMMANDS = {name: command for group in _GROUPS.values() for name, command in group.items()}

_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a write to a full disk. Those of opening a file have its name besides."""

Run = Callable[[list[str]], int]
"""Runs a subcommand with its arguments and returns the exit code."""


def commands() -> dict[str, tuple[str, Run]]:
    """Return all commands by name, each with its description and the function that runs it."""
    return {
        **{name: (text, _command(name)) for name, (_, text) in _COMMANDS.items()},
        **{name: (text, _service(name)) for name, (_, text) in _SERVICES.items()},
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    _open_closed_streams()
    try:
        return _dispatch(list(sys.argv[1:] if argv is None else argv))
    except BrokenPipeError:  # the reader has closed the pipe, as in `tetrad status | head`
        return 0
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            raise
        return _give_up_stdout(error)
    finally:
        _flush_stdout()


def _open_closed_streams() -> None:
    """Open /dev/null for each standard stream that the caller has closed (`2>&-`), which Python then sets to None.

    A new file takes the lowest free descriptor, so each stream gets its own one. Otherwise a socket or a file would get it, and
    native code would write its messages there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123 - open until the end


def _dispatch(arguments: list[str]) -> int:
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        print(_usage())
        return 0
    if name in ("-V", "--version"):
        print(f"tetrad {VERSION}")
        return 0
    command = commands().get(name)
    if command is None:
        close = difflib.get_close_matches(name, commands(), n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        print(f"tetrad: there is no command {name!r}; {hint}`tetrad --help` lists them", file=sys.stderr)
        return 2
    return _run(command[1], arguments[1:])


def _command(name: str) -> Run:
    def run(arguments: list[str]) -> int:
        with _missing_package_named(name), no_search():
            module = import_module(_COMMANDS[name][0])
        return int(module.run(arguments))

    return run


@contextlib.contextmanager
def _missing_package_named(name: str) -> Iterator[None]:
    """Convert the error of a missing package to one line that names it; a missing module of Tetrad is not converted."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module in ("", "tetrad"):
            raise
        raise missing_packages(f"tetrad {name}", (module,)) from error


def _run(run: Run, arguments: list[str]) -> int:
    try:
        return run(arguments)
    except TetradError as error:
        from tetrad.services.process import exit_code_of  # takes 0.2 s, which --help need not wait for

        print(f"tetrad: {error.message}", file=sys.stderr)
        return exit_code_of(error)
    except KeyboardInterrupt:
        return 130


def _flush_stdout() -> None:
    """Write what is left, and discard what cannot be written: Python would report it at the end of the process.

    A reader that has closed the pipe is no error. After any other, such as a full disk, the process ends with exit code 1.
    """
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError as error:
        if code := _give_up_stdout(error):
            sys.exit(code)


def _give_up_stdout(error: OSError) -> int:
    """Discard what could not be written, and return the exit code; the reason is one line, unless the reader has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return 0
    print(f"tetrad: the output cannot be written: {error.strerror or error}", file=sys.stderr)
    return 1


def _service(name: str) -> Run:
    """Return a function that runs the service; the service's module reads the arguments and exits the process."""

    def run(arguments: list[str]) -> int:
        package = _SERVICES[name][0]
        sys.argv = [package, *arguments]
        with _missing_package_named(name):
            runpy.run_module(package, run_name="__main__", alter_sys=True)
        return 0

    return run


def _usage() -> str:
    lines = ["usage: tetrad COMMAND [OPTIONS]"]
    for title, group in (*_GROUPS.items(), (_SERVICES_TITLE, _SERVICES)):
        lines += ["", f"{title}:", *(f"  {name:<12} {text}" for name, (_, text) in group.items())]
    return "\n".join([*lines, "", "`tetrad COMMAND --help` shows options, defaults and units."])
