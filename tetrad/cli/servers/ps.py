"""`tetrad ps`: lists the running servers of this user on this machine."""

import time
from collections.abc import Sequence
from pathlib import Path

from tetrad.cli.http_client import HttpClient
from tetrad.cli.models.texts import table
from tetrad.cli.options import new_parser
from tetrad.cli.sampling_options import add_server_credentials
from tetrad.cli.servers.running import RunningServer, running_servers
from tetrad.library.metrics_text import read_metrics
from tetrad.services.command_line import CommandLineParser
from tetrad.services.errors import InvalidRequest, TetradError
from tetrad.stack.private_directory import held_since

_HEAD = ("URL", "MODEL", "CONTEXT", "STATE", "RUNNING", "WAITING", "KV CACHE", "UP")
_TIMEOUT_S = 2.0


def run(arguments: list[str]) -> int:
    """Print a line for each server."""
    options = make_parser().parse_args(arguments)
    rows = [row_of(server, options.api_key, options.ca_file) for server in running_servers()]
    print("\n".join(table([_HEAD, *rows])) if rows else "No server of this user runs on this machine.")
    return 0


def make_parser() -> CommandLineParser:
    """Return the command's parser."""
    parser = new_parser("ps", "List the running servers of this user on this machine.")
    add_server_credentials(parser)
    return parser


def row_of(server: RunningServer, api_key: str | None, ca_file: Path | None) -> Sequence[str]:
    """Return the row of a server; unknown values are dashes."""
    began = held_since(server.directory)
    up = "-" if began is None else _duration(time.time() - began)
    try:
        with HttpClient(server.url, api_key=api_key, ca_file=ca_file, timeout_s=_TIMEOUT_S) as client:
            health = client.get_json("/health/ready", also=503)
            state = "ready" if health["status"] == "ready" else "not ready"
            metrics = read_metrics(client.get_text("/metrics"))
            model, context = _model(client)
    except TetradError:
        return (server.url, "-", "-", "no answer", "-", "-", "-", up)
    load = [f"{metrics[name]:.0f}" if name in metrics else "-" for name in ("num_requests_running", "num_requests_waiting")]
    usage = f"{metrics['kv_cache_usage_perc'] * 100:.0f} %" if "kv_cache_usage_perc" in metrics else "-"
    return (server.url, model, context, state, *load, usage, up)


def _model(client: HttpClient) -> tuple[str, str]:
    try:
        card = client.get_json("/v1/models")["data"][0]
    except InvalidRequest:  # the server requires a key
        return "needs a key", "-"
    return str(card["id"]), str(card["max_model_len"])


def _duration(seconds: float) -> str:
    for size_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
