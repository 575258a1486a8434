"""A stack whose output is not read, as on a stopped terminal (Ctrl-S) or behind a pager: it serves, recovers and ends."""

import contextlib
import fcntl
import os
import signal
import sys
import time

import httpx
import psutil
import pytest

from benchmarks.stack import free_port

READY_TIMEOUT_S = 120
PIPE_BYTES = 4096  # the smallest pipe that there is


@pytest.fixture
def unread_stack(tmp_path):
    """Return URL and process of `tetrad serve` whose stdout and stderr are a full pipe."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    os.write(write, b"x" * PIPE_BYTES)
    port = free_port()
    command = [sys.executable, "-m", "tetrad.cli", "serve", "--port", str(port), "--device", "sim", "--log-level", "info"]
    command += ["--tokenizer-pool-size", "1"]
    environment = os.environ | {"TETRAD_FRONTEND_RESPONSES_STORE": str(tmp_path / "responses.sqlite3")}
    process = psutil.Popen(command, stdout=write, stderr=write, env=environment)
    os.close(write)
    yield f"http://127.0.0.1:{port}", process
    if process.poll() is None:
        for each in (*process.children(recursive=True), process):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
    process.wait()
    os.close(read)


def until(condition) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "never"
        time.sleep(0.05)


def is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def test_a_stack_whose_output_nobody_reads_serves_heals_and_ends(unread_stack):
    url, process = unread_stack
    until(lambda: is_healthy(url))

    with httpx.Client(timeout=10) as client:
        for _ in range(1_500):  # each is a line in the log
            client.post(f"{url}/v1/completions", content=b"{")
    alive = httpx.get(f"{url}/health/live", timeout=10)
    worker = next(each for each in process.children() if each.cmdline()[-1] == "tetrad.worker_svc")
    worker.send_signal(signal.SIGKILL)
    worker.wait(10)
    until(lambda: is_healthy(url))
    children = process.children(recursive=True)
    process.send_signal(signal.SIGTERM)

    assert alive.status_code == 200
    assert worker.pid not in {child.pid for child in children}
    assert process.wait(10) == 0
    assert not psutil.wait_procs(children, timeout=1)[1]
