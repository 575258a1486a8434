"""One stack over the simulated device, with every service's /metrics port open, and traffic behind it."""

import contextlib
import json
import random
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.documents import Page
from tests.e2e.conftest import Server
from tests.observability.exposition import Family, scrape
from tests.observability.traffic import send_round
from tests.vision_files import save_vision_model

PAGE = Page.of("docs/operations.md")
VARIABLES = {name: f"TETRAD_{name.upper().replace('-', '_')}_METRICS_PORT" for name in ("worker", "engine-core", "tokenizer")}
"""Job, as in prometheus.yml -> what gives it a port, as the command in docs/operations.md says."""
DRAFTS = {"method": "ngram", "num_speculative_tokens": 2}
"""Without speculation, the metrics of accepted tokens by position have no series."""


@dataclass(frozen=True)
class Stack:
    """A running stack: where it answers, and its /metrics ports by job."""

    url: str
    ports: dict[str, int]


@pytest.fixture(scope="session")
def stack(tmp_path_factory) -> Iterator[Stack]:
    """The command of the page, with free ports, one more for the frontend's own, and a model that reads images."""
    assert re.findall(r"(TETRAD_\w+)=\d+", PAGE.text) == list(VARIABLES.values())
    variables = VARIABLES | {"frontend": "TETRAD_FRONTEND_METRICS_PORT"}
    ports = dict(zip(variables, free_ports(len(variables)), strict=True))
    with pytest.MonkeyPatch.context() as patch:
        for job, variable in variables.items():
            patch.setenv(variable, str(ports[job]))
        folder = tmp_path_factory.mktemp("observed")
        save_vision_model(folder / "model", "qwen2_5_vl")
        flags = ("--model", str(folder / "model"), "--device", "sim", "--speculative-config", json.dumps(DRAFTS))
        server = Server(folder / "log", *flags)
    try:
        server.wait_ready()
        assert sorted(set(send_round(server.url, 0))) == [200, 400, 404]
        yield Stack(server.url, ports)
    finally:
        server.stop()


@pytest.fixture(scope="session")
def exported(stack) -> dict[str, dict[str, Family]]:
    """Return job -> families by name."""
    return {job: scrape(port) for job, port in stack.ports.items()}


def free_ports(number: int) -> list[int]:
    """Return ports that are free together with their successors, which a second tokenizer takes.

    No outgoing connection gets one before a server takes it: those begin at 32768.
    """
    while True:
        first = random.SystemRandom().randrange(12_000, 32_000)
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            for port in range(first, first + 2 * number):
                probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return list(range(first, first + 2 * number, 2))
