"""`tetrad status`: shows services, readiness and load of running servers.

Reads one server over HTTP, and the local stacks of this machine through their sockets: with --url the stack of this server,
without it all stacks.
"""

import math
import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tetrad.cli.http_client import DEFAULT_URL, HttpClient
from tetrad.cli.interruptible import run_interruptible
from tetrad.cli.options import new_parser
from tetrad.cli.sampling_options import add_server_address
from tetrad.cli.watching import watch
from tetrad.library.metrics_text import read_metrics
from tetrad.readiness import HealthTarget, check_readiness
from tetrad.services.errors import InvalidRequest, TetradError
from tetrad.stack.private_directory import private_directories
from tetrad.stack.service_names import HEALTH_NAMES, kind_of
from tetrad.stack.stack_url import is_same_server, read_url

_GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
_RATES = {"request_success": "requests_per_s", "prompt_tokens": "prompt_tokens_per_s", "generation_tokens": "tokens_per_s"}
"""Counter -> name of its rate since the last update."""
_CHECK_TIMEOUT_S = 2.0
_INTERVAL_S = 1.0
_CREDENTIALS = struct.Struct("3i")
"""Process, user and group of the peer of a socket."""


def run(arguments: list[str]) -> int:
    """Print the status; return 1 if the server does not accept requests."""
    parser = new_parser(
        "status",
        "Show a server's services, whether they are ready, and their load. Without --url: the server at the default address "
        "and every server of this user on this machine.",
    )
    add_server_address(parser)
    parser.set_defaults(url=None)
    parser.add_argument("--watch", action="store_true", help="Repeat until q or Ctrl-C.")
    text = f"With --watch: seconds between updates. Unset: {_INTERVAL_S:g}."
    parser.add_argument("--interval-s", type=float, default=None, metavar="X", help=text)
    options = parser.parse_args(arguments)
    if options.interval_s is not None and not options.watch:
        raise InvalidRequest("--interval-s is the time between updates of --watch: give --watch, too.", field="interval_s")
    interval_s = _INTERVAL_S if options.interval_s is None else options.interval_s
    if not 0 < interval_s < math.inf:
        text = f"--interval-s must be more than 0 and finite, got {interval_s:g}."
        raise InvalidRequest(text, field="interval_s")
    url = options.url or DEFAULT_URL
    with HttpClient(url, api_key=options.api_key, ca_file=options.ca_file, timeout_s=5.0) as client:
        looker = _Looker(client, with_all_stacks=options.url is None)
        if options.watch:
            watch(lambda: "\n".join(looker.look().all_lines()) + "\n", interval_s, out=sys.stdout, keys=sys.stdin)
            return 0
        report = looker.look()
    if report.problem:
        print(report.problem, file=sys.stderr)
    for line in report.lines:
        print(line)
    return 1 if report.problem else 0


@dataclass(slots=True)
class _Report:
    """The state at one moment; `problem` is a line that says why the server does not accept requests, empty if it does."""

    problem: str = ""
    lines: list[str] = field(default_factory=list)

    def all_lines(self) -> list[str]:
        return [self.problem, *self.lines] if self.problem else self.lines


class _Looker:
    """Reads the state of a server and of this machine's stacks.

    Args:
        client: client of the server.
        with_all_stacks: whether to read the stacks of other servers, too.
    """

    def __init__(self, client: HttpClient, *, with_all_stacks: bool) -> None:
        self._client = client
        self._with_all_stacks = with_all_stacks
        self._before: tuple[float, Mapping[str, float]] | None = None

    def look(self) -> _Report:
        """Return the present state of the servers."""
        report = self._server()
        for directory in private_directories():
            url = read_url(directory)
            if self._with_all_stacks or is_same_server(url, self._client.url):
                report.lines.append(f"stack       {url or directory}")
                report.lines += run_interruptible(_stack(sorted(directory.glob("*.sock"))))
        return report

    def _server(self) -> _Report:
        """Return the state of the server and of the services that it depends on."""
        client = self._client
        try:
            version = client.get_json("/version")["version"]
            health = client.get_json("/health/ready", also=503)
            if health["status"] != "ready":
                return _Report(f"server      {client.url}  not ready: {health['problem']}", [_dependencies(health)])
            cards = client.get_json("/v1/models")["data"]
            metrics = read_metrics(client.get_text("/metrics"))
            names = ", ".join(f"{card['id']} (context {card['max_model_len']} tokens)" for card in cards)
        except TetradError as error:
            return _Report(f"server      {client.url}  not ready: {error.message}")
        except (LookupError, TypeError, ValueError):  # documents of other forms
            return _Report(f"server      {client.url}  is not a Tetrad server.")
        load = [f"{name} {metrics[name]:g}" for name in _GAUGES if name in metrics] + list(self._rates(metrics))
        server = f"server      {client.url}  ready  Tetrad {version}  {names}"
        return _Report(lines=[server, _dependencies(health), f"load        {'  '.join(load)}"])

    def _rates(self, metrics: Mapping[str, float]) -> Iterator[str]:
        """Yield the rates of counters since the last update; none at the first update and after a restart of the server."""
        now, before = time.monotonic(), self._before
        self._before = now, metrics
        if before is None:
            return
        for name, shown in _RATES.items():
            grown = metrics.get(name, 0.0) - before[1].get(name, 0.0)
            if grown >= 0 and name in metrics:
                yield f"{shown} {grown / max(now - before[0], 1e-9):.1f}"


def _dependencies(health: dict[str, Any]) -> str:
    states = (f"{each['name']} {each['problem'] or 'ready'}" for each in health["dependencies"])
    return f"needs       {',  '.join(states)}"


async def _stack(sockets: list[Path]) -> list[str]:
    """Return a line for each service of a stack."""
    lines = []
    for path in sockets:
        name = path.stem
        service = HEALTH_NAMES.get(kind_of(name))
        if service is None:
            continue
        try:
            ready = await check_readiness(HealthTarget(f"unix:{path}", service), timeout_s=_CHECK_TIMEOUT_S)
            state = "ready" if ready else "not ready"
        except TetradError as error:
            state = f"unreachable ({error.message})"
        lines.append(f"{name:<11} unix:{path}  {state}{_pid_text(path)}")
    return lines


def _pid_text(path: Path) -> str:
    """Return the id of the process that listens on a socket, as text; empty if it is unknown."""
    if not hasattr(socket, "SO_PEERCRED"):
        return ""
    try:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(_CHECK_TIMEOUT_S)
            peer.connect(str(path))
            pid, _, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    except OSError:
        return ""
    return f"  pid {pid}" if pid else ""  # 0: a process of another namespace
