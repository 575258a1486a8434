"""Running servers: finds the servers of this user on this machine by the directories of their stacks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tetrad.services.errors import InvalidRequest, NotFound
from tetrad.stack.private_directory import private_directories
from tetrad.stack.stack_url import is_same_server, read_url


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A running stack with an HTTP server.

    Attributes:
        directory: the directory of its sockets.
        url: URL of its HTTP server.
    """

    directory: Path
    url: str


def running_servers() -> list[RunningServer]:
    """Return all servers, without the stacks of programs, which have no URL."""
    found = [RunningServer(directory, read_url(directory)) for directory in private_directories()]
    return [server for server in found if server.url]


def chosen_server(servers: Sequence[RunningServer], url: str | None) -> RunningServer:
    """Return the server at a URL; without a URL the only server.

    Raises:
        NotFound: there is no such server.
        InvalidRequest: there are several servers, and no URL is given.
    """
    fitting = [server for server in servers if url is None or is_same_server(server.url, url)]
    if not fitting:
        where = "runs on this machine" if url is None else f"of this machine is at {url}"
        raise NotFound(f"No server {where}. `tetrad ps` lists them.")
    if len(fitting) > 1:
        text = f"Several servers run: {', '.join(server.url for server in fitting)}. Choose one with --url."
        raise InvalidRequest(text, field="url")
    return fitting[0]
