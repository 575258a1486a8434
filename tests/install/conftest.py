"""Wheels, virtual environments and servers that run in them."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.stack import free_port

ROOT = Path(__file__).parents[2]
READY_TIMEOUT_S = 120


class Environment:
    """A virtual environment, and what its commands see: its own packages, and of this process neither paths nor variables.

    Args:
        directory: that it is made in.
        borrowed: a directory of packages that it has besides its own.
    """

    def __init__(self, directory: Path, borrowed: Path | None = None) -> None:
        self.directory, self.bin = directory, directory / "venv" / "bin"
        without_pip = [] if borrowed is None else ["--without-pip"]
        subprocess.run([sys.executable, "-m", "venv", *without_pip, str(directory / "venv")], check=True)
        if borrowed is not None:
            [packages] = (directory / "venv" / "lib").glob("python*/site-packages")
            (packages / "borrowed.pth").write_text(f"{borrowed}\n")

    def variables(self) -> dict[str, str]:
        """Return the environment variables of commands: PATH has the environment's own commands only, so no compiler."""
        kept = {
            name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "HTTP", "http", "no_proxy"))
        }
        return kept | {"PATH": str(self.bin), "HOME": str(self.directory), "TETRAD_CACHE_DIR": str(self.directory / "cache")}

    def run(self, *command: str) -> str:
        """Run a command of the environment and return its output; it must succeed."""
        result = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self.directory,
            env=self.variables(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout[-4000:]
        return result.stdout

    @contextlib.contextmanager
    def serving(self, *flags: str) -> Iterator[tuple[str, str, Path]]:
        """Run `tetrad serve`; give its URL, its gRPC target and its log when it is ready."""
        port, grpc_port, log = free_port(), free_port(), self.directory / "log"
        command = [str(self.bin / "tetrad"), "serve", "--port", str(port), "--grpc-port", str(grpc_port), *flags]
        with log.open("wb") as file:
            process = subprocess.Popen(command, cwd=self.directory, env=self.variables(), stdout=file, stderr=subprocess.STDOUT)
        try:
            _wait_ready(process, f"http://127.0.0.1:{port}", log)
            yield f"http://127.0.0.1:{port}", f"127.0.0.1:{grpc_port}", log
        finally:
            process.terminate()
            process.wait(20)


def _wait_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while "Try:" not in log.read_text(errors="replace"):
        assert process.poll() is None, log.read_text(errors="replace")
        assert time.monotonic() < deadline, f"{url} was not ready:\n{log.read_text(errors='replace')}"
        time.sleep(0.05)


def post(url: str, body: object) -> object:
    """Post JSON and return the JSON that comes back."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


BuildWheels = Callable[[Sequence[str]], list[Path]]


@pytest.fixture(scope="session")
def build_wheels(tmp_path_factory: pytest.TempPathFactory) -> BuildWheels:
    """Return what builds the wheels of the tracked files: tetrad's and the client's."""

    def build(flags: Sequence[str] = ()) -> list[Path]:
        out = tmp_path_factory.mktemp("wheels")
        command = [sys.executable, str(ROOT / "tools" / "wheels.py"), "--out", str(out), *flags]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
        return [Path(line) for line in result.stdout.split()]

    return build


@pytest.fixture
def this_environment() -> Path:
    """Return the directory of the packages that the tests run with."""
    return Path(sysconfig.get_path("purelib"))


@pytest.fixture
def has_compiler() -> bool:
    """Return whether kernels can be compiled into a wheel here."""
    return shutil.which("g++") is not None
