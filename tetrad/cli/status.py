"""`tetrad status`: what runs where, whether it takes work, and how much it has to do.

Looks at one server over HTTP, and at the local stacks of this machine through their sockets.
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from tetrad.cli.http_client import HttpClient
from tetrad.cli.options import new_parser
from tetrad.cli.sampling_options import add_server_address
from tetrad.local_stack import HEALTH_NAMES, kind_of
from tetrad.metrics_text import read_metrics
from tetrad.private_directory import private_directories
from tetrad.readiness import HealthTarget, check_readiness
from tetrad.services.errors import TetradError

_GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
_CHECK_TIMEOUT_S = 2.0


def run(arguments: list[str]) -> int:
    """Print the status; returns 1 if the server does not take work."""
    parser = new_parser("status", "Show what runs where, whether it takes work, and how much it has to do.")
    add_server_address(parser)
    parser.add_argument("--watch", action="store_true", help="Go on until Ctrl-C.")
    parser.add_argument("--interval-s", type=float, default=2.0, help="With --watch: seconds between two looks.")
    options = parser.parse_args(arguments)
    with HttpClient(options.url, ca_file=options.ca_file, timeout_s=5.0) as client:
        while True:
            well = _print_server(client)
            for directory in private_directories():
                asyncio.run(_print_stack(sorted(directory.glob("*.sock"))))
            if not options.watch:
                return 0 if well else 1
            time.sleep(options.interval_s)
            print()


def _print_server(client: HttpClient) -> bool:
    """Print how the server is and what it depends on; return whether it takes work."""
    try:
        version = client.get_json("/version")["version"]
        health = client.get_json("/health/ready", also=503)
        if health["status"] != "ready":
            print(f"server      {client.url}  not ready: {health['problem']}", file=sys.stderr)
            _print_dependencies(health)
            return False
        cards = client.get_json("/v1/models")["data"]
        metrics = read_metrics(client.get_text("/metrics"))
    except TetradError as error:
        print(f"server      {client.url}  not ready: {error.message}", file=sys.stderr)
        return False
    names = ", ".join(f"{card['id']} (context {card['max_model_len']} tokens)" for card in cards)
    print(f"server      {client.url}  ready  Tetrad {version}  {names}")
    _print_dependencies(health)
    print(f"load        {'  '.join(f'{name} {metrics[name]:g}' for name in _GAUGES if name in metrics)}")
    return True


def _print_dependencies(health: dict[str, Any]) -> None:
    states = (f"{each['name']} {each['problem'] or 'ready'}" for each in health["dependencies"])
    print(f"needs       {',  '.join(states)}")


async def _print_stack(sockets: list[Path]) -> None:
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
        print(f"{name:<11} unix:{path}  {state}")
