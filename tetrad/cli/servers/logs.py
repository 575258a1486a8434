"""`tetrad logs`: shows the last log lines of a running server's services, and follows new ones."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from tetrad.cli.options import new_parser
from tetrad.cli.servers.running import chosen_server, running_servers
from tetrad.services.command_line import CommandLineParser
from tetrad.services.errors import InvalidRequest, NotFound
from tetrad.stack.stack_log import log_path, parts_of, read_lines
from tetrad.stack.terminal_lines import TerminalLines, wants_colours

_LOOK_EVERY_S = 0.2


def run(arguments: list[str]) -> int:
    """Print the lines."""
    options = make_parser().parse_args(arguments)
    if options.lines < 0:
        raise InvalidRequest(f"--lines must not be negative, got {options.lines}.", field="lines")
    server = chosen_server(running_servers(), options.url)
    if options.service is not None:
        check_service(server.directory, options.service)
    # Opened first, so that lines that are written meanwhile are not missed; they may be shown twice.
    following = new_lines(log_path(server.directory)) if options.follow else iter(())
    lines = [line for line in read_lines(server.directory) if _is_wanted(line, options.service)]
    render = renderer(sys.stdout)
    for line in lines[len(lines) - min(options.lines, len(lines)) :]:
        print(render(line))
    for line in following:
        if _is_wanted(line, options.service):
            print(render(line), flush=True)
    return 0


def make_parser() -> CommandLineParser:
    """Return the command's parser."""
    text = "Show what the services of a running server have written. --log-level of `tetrad serve` says how much."
    parser = new_parser("logs", text)
    parser.add_argument("--url", default=None, help="URL of the server. Unset: the only one that runs.")
    parser.add_argument("--service", default=None, metavar="NAME", help="Only lines of this service, such as worker.")
    parser.add_argument("-n", "--lines", type=int, default=50, metavar="N", help="Number of lines.")
    parser.add_argument("-f", "--follow", action="store_true", help="Go on with new lines until the server ends, or Ctrl-C.")
    return parser


def check_service(directory: Path, service: str) -> None:
    """Raise NotFound, with the names of the services, if the stack of a directory has no such service."""
    written = {parts_of(line)[0] for line in read_lines(directory)}
    known = {path.stem for path in directory.glob("*.sock")} | written
    if service not in known:
        raise NotFound(f"This server has no service {service!r}; it has {', '.join(sorted(known))}.", field="service")


def renderer(stream: TextIO) -> Callable[[str], str]:
    """Return a function that renders a stored line: with its service in colour if `stream` is a terminal, else unchanged."""
    if not stream.isatty():
        return lambda line: line
    of_services: dict[str, TerminalLines] = {}

    def render(line: str) -> str:
        service, text = parts_of(line)
        if service not in of_services:
            of_services[service] = TerminalLines(service, colours=wants_colours(), with_repeated=True)
        return of_services[service](text).removesuffix("\n")

    return render


def new_lines(path: Path) -> Iterator[str]:
    """Yield the lines that are written from now on, until the server's directory is removed."""
    file = _opened(path)
    if file is not None:
        file.seek(0, os.SEEK_END)
    rest = ""
    try:
        while True:
            while file is not None and (text := file.readline()):
                rest += text
                if rest.endswith("\n"):
                    yield rest.rstrip("\n")
                    rest = ""
            if not path.parent.exists():
                return
            if (file is None or not _is_at(path, file)) and (newest := _opened(path)) is not None:
                if file is not None:
                    file.close()
                file = newest
            else:
                time.sleep(_LOOK_EVERY_S)
    finally:
        if file is not None:
            file.close()


def _opened(path: Path) -> TextIO | None:
    """Return an open file; None if there is none at the moment."""
    try:
        return path.open(errors="replace")
    except FileNotFoundError:
        return None


def _is_at(path: Path, file: TextIO) -> bool:
    """Return whether an open file is the one at a path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _is_wanted(line: str, service: str | None) -> bool:
    return service is None or parts_of(line)[0] == service
