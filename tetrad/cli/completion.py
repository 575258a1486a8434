"""`tetrad completion`: prints a script with which a shell completes the words of this command."""

import argparse
from pathlib import Path

import shtab

from tetrad.cli import commands
from tetrad.cli.options import new_parser
from tetrad.services.command_line import parser_of

_SHELLS = ("bash", "zsh", "fish")
_PLACES = {
    "bash": "~/.local/share/bash-completion/completions/tetrad",
    "zsh": "_tetrad in a directory of $fpath",
    "fish": "~/.config/fish/completions/tetrad.fish",
}


def run(arguments: list[str]) -> int:
    """Print the script."""
    places = "; ".join(f"{shell}: {place}" for shell, place in _PLACES.items())
    parser = new_parser("completion", f"Print a script for a shell, to be kept as a file. {places}.")
    parser.add_argument("shell", choices=_SHELLS, metavar="SHELL", help=f"One of {', '.join(_SHELLS)}.")
    shell = parser.parse_args(arguments).shell
    print(shtab.complete(whole_parser(), shell))
    return 0


def whole_parser() -> argparse.ArgumentParser:
    """Return a parser with all commands and all of their options."""
    whole = argparse.ArgumentParser(prog="tetrad")
    whole.add_argument("-V", "--version", action="store_true", help="Print the version.")
    subparsers = whole.add_subparsers(dest="command", metavar="COMMAND")
    for name, (text, command) in commands().items():
        own = parser_of(lambda command=command: command([]))  # type: ignore[misc] # bound now, not at the end of the loop
        for action in own._actions:  # noqa: SLF001 - argparse has no other way to list them
            if action.type is Path or action.metavar in ("PATH", "FILE", "MODEL"):
                action.complete = shtab.FILE  # type: ignore[attr-defined] # shtab reads this attribute
        subparsers.add_parser(name, parents=[own], add_help=False, help=text, description=text)
    return whole
