"""`tetrad serve` on a terminal: its services' log lines are text for people, one for each request."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import httpx
import pytest

from benchmarks.stack import free_port
from tests.e2e.conftest import ONE_TOKENIZER

READY_TIMEOUT_S = 120


@pytest.fixture
def terminal_server(tmp_path):
    """Return the URL of `tetrad serve` on a terminal, its process, and what it has shown so far."""
    terminal, own = os.openpty()
    port, grpc_port = free_port(), free_port()
    ports = ("--port", str(port), "--grpc-port", str(grpc_port))
    command = [sys.executable, "-m", "tetrad.cli", "serve", *ports, "--device", "sim", "--log-level", "info"]
    command += ONE_TOKENIZER
    environment = os.environ | {"TETRAD_FRONTEND_RESPONSES_STORE": str(tmp_path / "responses.sqlite3"), "NO_COLOR": "1"}
    process = subprocess.Popen(command, stdin=own, stdout=own, stderr=own, env=environment)
    os.close(own)
    shown = bytearray()
    reading = threading.Thread(target=read_into, args=(terminal, shown))
    reading.start()
    yield f"http://127.0.0.1:{port}", process, shown
    process.kill()
    process.wait()
    reading.join()
    os.close(terminal)


def read_into(terminal: int, shown: bytearray) -> None:
    """Read until the last process that has the terminal is gone."""
    with contextlib.suppress(OSError):
        while data := os.read(terminal, 65536):
            shown += data


def until(condition) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "never"
        time.sleep(0.05)


def is_healthy(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    return False


def test_services_lines_have_names_in_front_and_a_request_has_one(terminal_server):
    url, process, shown = terminal_server
    until(lambda: is_healthy(url))

    answer = httpx.post(f"{url}/v1/completions", json={"prompt": "a", "max_tokens": 2}, headers={"x-request-id": "question"})
    process.send_signal(signal.SIGTERM)
    process.wait(30)
    until(lambda: b"worker      | " in shown and b"server.stopped" in shown)

    assert answer.status_code == 200
    lines = shown.decode().splitlines()
    (line,) = (line for line in lines if "request.finished" in line)
    assert line.startswith("frontend    | ")
    assert "request_id=question" in line
    assert not any('{"event"' in line or "\x1b" in line for line in lines)
