"""`tetrad serve` as a user starts it: a command, real processes, a real port."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from benchmarks.stack import free_port
from tests.tetrad.cli.commands import end_forks

READY_TIMEOUT_S = 120
ONE_TOKENIZER = ("--tokenizer-pool-size", "1")
"""In place of two: each process of a stack takes most of a second of CPU time until it is there."""


class Server:
    """A running `tetrad serve`.

    Attributes:
        url: of the HTTP server.
        grpc_target: of the public gRPC server.
        log: the file with all its output.
    """

    def __init__(self, log: Path, *flags: str) -> None:
        port, grpc_port = free_port(), free_port()
        self.url, self.grpc_target = f"http://127.0.0.1:{port}", f"127.0.0.1:{grpc_port}"
        self.log = log
        command = [sys.executable, "-m", "tetrad.cli", "serve", "--port", str(port), "--grpc-port", str(grpc_port), *flags]
        # Responses are kept beside the log, not in the user's cache.
        environment = os.environ | {
            "TETRAD_FRONTEND_RESPONSES_STORE": str(log.with_suffix(".sqlite3")),
            **{
                f"TETRAD_{each}_PROFILE_DIR": str(log.with_suffix(".profiles"))
                for each in ("FRONTEND", "ENGINE_CORE", "WORKER")
            },
        }
        with log.open("wb") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)

    def wait_ready(self) -> "Server":
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"tetrad serve ended:\n{self.output()}"
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/health").status_code == 200:
                    return self
            time.sleep(0.1)
        raise AssertionError(f"not ready after {READY_TIMEOUT_S} s:\n{self.output()}")

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for_log(self, *patterns: str) -> None:
        """Wait until each of these is in a line of the output: what children write comes through their parent."""
        deadline = time.monotonic() + 10
        while missing := [pattern for pattern in patterns if not re.search(pattern, self.output())]:
            assert time.monotonic() < deadline, f"no line has {missing}"
            time.sleep(0.05)

    def processes(self) -> list[psutil.Process]:
        """Return the command's process and everything it started."""
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def process_of(self, service: str) -> psutil.Process:
        """Return the process of a service, such as `worker_svc`; while the service restarts, wait for it."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            for process in self.processes():
                # A process that was killed may be a zombie, and another may end between the two calls.
                with contextlib.suppress(psutil.Error):
                    if f"tetrad.{service}" in process.cmdline():
                        return process
            time.sleep(0.02)
        raise AssertionError(f"no process of {service}:\n{self.output()}")

    def memory_bytes(self) -> int:
        """Return the resident memory of all processes; renderers of templates may end meanwhile."""
        total = 0
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
        return total

    def stack_directory(self) -> str:
        """Return where the stack's sockets are: what `LLM(target=...)` takes."""
        targets = self.process_of("frontend").environ()["TETRAD_FRONTEND_TOKENIZER_TARGETS"]
        return str(Path(json.loads(targets)[0].removeprefix("unix:")).parent)

    def metric(self, name: str) -> float:
        """Return the sum of a Prometheus metric over its labels."""
        text = httpx.get(f"{self.url}/metrics").text
        return sum(float(value) for value in re.findall(rf"^tetrad:{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE))

    def wait_idle(self, timeout_s: float) -> None:
        """Wait until nothing runs, nothing waits and all KV blocks are free; AssertionError after `timeout_s`."""
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        deadline = time.monotonic() + timeout_s
        while any(values := {name: self.metric(name) for name in names}.values()):
            assert time.monotonic() < deadline, f"still busy after {timeout_s} s: {dict(zip(names, values, strict=True))}"
            time.sleep(0.05)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@pytest.fixture(scope="module", autouse=True)
def _no_fork_is_left() -> Iterator[None]:
    """End what ran commands of a module."""
    yield
    end_forks()


@pytest.fixture
def start_server(tmp_path) -> Iterator[Callable[..., Server]]:
    """Return a starter of servers of one's own; they are stopped behind the test."""
    started: list[Server] = []

    def start(*flags: str) -> Server:
        started.append(Server(tmp_path / f"log{len(started)}", *flags))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="module")
def start_module_server(tmp_path_factory) -> Iterator[Callable[..., Server]]:
    """Return a starter of servers that are ready, for the tests of one module."""
    started: list[Server] = []

    def start(*flags: str) -> Server:
        started.append(Server(tmp_path_factory.mktemp("own") / "log", *flags))
        return started[-1].wait_ready()

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def sim_server(tmp_path_factory) -> Iterator[Server]:
    """The stack over a simulated device at zero step time."""
    server = Server(tmp_path_factory.mktemp("sim") / "log", "--device", "sim")
    try:
        yield server.wait_ready()
    finally:
        server.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory, smollm2) -> Iterator[Server]:
    """The stack over the real model on the CPU."""
    server = Server(tmp_path_factory.mktemp("cpu") / "log", "--device", "cpu", "--threads", "1", "--max-model-len", "2048")
    try:
        yield server.wait_ready()
    finally:
        server.stop()
