"""Command line: an argument parser whose errors are one line, for the services and for the `tetrad` command."""

import argparse
import contextlib
import difflib
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NoReturn

_METAVARS = {
    "str": "TEXT",
    "int": "N",
    "float": "X",
    "Path": "PATH",
    "tuple[str,...]": "NAMES",
    "tuple[JSON,...]": "JSON",
    "{int,auto}": "{N,auto}",
}
"""Placeholder of a setting's value in help, by the name of its Python type."""
_NO_DEFAULT = re.compile(r" \(default: (None|\(\)|)\)$")
_TUPLE_DEFAULT = re.compile(r"\(default: \(([^()]+?),?\)\)$")


_IS_CAPTURING = ContextVar("is_capturing", default=False)


class _CapturedError(Exception):
    """Takes a parser out of the command that has made it."""

    def __init__(self, parser: "CommandLineParser") -> None:
        super().__init__()
        self.parser = parser


class CommandLineParser(argparse.ArgumentParser):
    """Reports an invalid command line in one line, with the most similar flag."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does; within `parser_of`, end the command instead."""
        if _IS_CAPTURING.get():
            raise _CapturedError(self)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Write the message and the most similar flag to stderr, and end the process with exit code 2."""
        flags = [flag for action in self._actions for flag in action.option_strings]
        unknown = [word.split("=")[0] for word in message.split() if word.startswith("-")]
        meant = [near for word in unknown for near in difflib.get_close_matches(word, flags, n=1)]
        hint = f"did you mean {' '.join(meant)}? " if meant and message.startswith("unrecognized") else ""
        self.exit(2, f"{self.prog}: {message}; {hint}`{self.prog} --help` lists the options\n")


def parser_of(command: Callable[[], object]) -> CommandLineParser:
    """Return the parser with which a command reads its arguments; the command runs until it would parse them.

    Raises:
        LookupError: the command ends without parsing arguments.
    """
    with _capturing():
        try:
            command()
        except _CapturedError as captured:
            return captured.parser
    raise LookupError("the command reads no arguments")


@contextlib.contextmanager
def _capturing() -> Iterator[None]:
    token = _IS_CAPTURING.set(True)
    try:
        yield
    finally:
        _IS_CAPTURING.reset(token)


def add_setting_argument(parser: argparse.ArgumentParser, *names: str, **options: Any) -> argparse.Action:
    """Add the flag of a setting, with its value and default in command-line syntax."""
    if "metavar" in options:
        options["metavar"] = _METAVARS.get(options["metavar"], options["metavar"])
    if isinstance(options.get("help"), str):
        text = _NO_DEFAULT.sub("", options["help"])
        options["help"] = _TUPLE_DEFAULT.sub(lambda match: f"(default: {match[1]})".replace("'", "").replace(", ", ","), text)
    return parser.add_argument(*names, **options)
