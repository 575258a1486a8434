"""The stack that benchmarks run against, as a user starts it."""

import contextlib
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

MODEL = "smollm2-135m-instruct"
PROMPT_LEN = 32


@dataclass(frozen=True)
class Stack:
    """A running `tetrad serve`: where it is, and its process."""

    url: str
    grpc_target: str
    pid: int


@contextlib.contextmanager
def serving(*flags: str) -> Iterator[str]:
    """Run `tetrad serve` with these flags; give its URL."""
    with running(*flags) as stack:
        yield stack.url


@contextlib.contextmanager
def running(*flags: str) -> Iterator[Stack]:
    """Run `tetrad serve` with these flags and the public gRPC API."""
    port, grpc_port = _free_port(), _free_port()
    ports = ("--port", str(port), "--grpc-port", str(grpc_port))
    process = subprocess.Popen([sys.executable, "-m", "tetrad.cli", "serve", MODEL, *ports, *flags], stdout=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        while True:
            if process.poll() is not None:
                raise RuntimeError("tetrad serve ended; its message is above")
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
                break
            time.sleep(0.2)
        yield Stack(url, f"127.0.0.1:{grpc_port}", process.pid)
    finally:
        process.terminate()
        process.wait(20)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
