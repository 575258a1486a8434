"""Stack: runs `tetrad serve` for benchmarks in the same way as a user."""

import contextlib
import os
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tetrad.stack.private_directory import private_directories

MODEL = "smollm2-135m-instruct"
PROMPT_LEN = 32
_START_TIMEOUT_S = 300.0
_STOP_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Stack:
    """A running `tetrad serve`: its addresses and its process; `start_s` is the time until its first answer to /health."""

    url: str
    grpc_target: str
    pid: int
    start_s: float
    engine_target: str = ""


@contextlib.contextmanager
def serving(*flags: str) -> Iterator[str]:
    """Run `tetrad serve` with these flags, and yield its URL."""
    with running(*flags) as stack:
        yield stack.url


@contextlib.contextmanager
def running(
    *flags: str, model: str = MODEL, log: Path | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[Stack]:
    """Run `tetrad serve` with these flags and the public gRPC API; every model is served under the name MODEL.

    Args:
        flags: flags of `tetrad serve`.
        model: a built-in name, a directory or a file.
        log: file for its stderr; None: this process's stderr.
        environment: environment variables besides those of this process.

    Raises:
        RuntimeError: the process ended before it was ready; its message is on stderr.
    """
    port, grpc_port = free_port(), free_port()
    names = ("--port", str(port), "--grpc-port", str(grpc_port), "--served-model-name", MODEL)
    command = [sys.executable, "-m", "tetrad.cli", "serve", model, *names, *flags]
    with contextlib.ExitStack() as files:
        stderr = None if log is None else files.enter_context(log.open("wb"))
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr, env={**os.environ, **(environment or {})})
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_healthy(url, process, _START_TIMEOUT_S)
            start_s = time.perf_counter() - start
            engine = f"unix:{_directory_of(process.pid)}/engine-core.sock"
            yield Stack(url, f"127.0.0.1:{grpc_port}", process.pid, start_s, engine)
        finally:
            process.terminate()
            process.wait(_STOP_TIMEOUT_S)


def wait_until_healthy(url: str, process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Wait until /health answers; RuntimeError if the process ends before, or after `timeout_s` seconds."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"The server ended with status {process.returncode}; its message is above, or in its log.")
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
            return
        time.sleep(0.02)
    raise RuntimeError(f"The server was not ready within {timeout_s:g} s.")


def free_port() -> int:
    """Return a free port below 32768, where ephemeral ports begin, so that no outgoing connection takes it."""
    return free_ports(1)[0]


def free_ports(number: int) -> list[int]:
    """Return `number` different free ports; see free_port."""
    while True:
        ports = random.SystemRandom().sample(range(12_000, 32_000), number)
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            for port in ports:
                probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return ports


def _directory_of(pid: int) -> Path:
    """Return the directory of a stack's sockets: the private directory whose lock the process `pid` holds."""
    links = Path(f"/proc/{pid}/fd")
    opened = {Path(os.path.realpath(link)).parent for link in links.iterdir()}
    [directory] = opened.intersection(private_directories())
    return directory
