"""Unmodified third-party programs in their own virtual environment, and stacks for them to use.

Not part of `make test`: `make gateways-test`. An environment is made once for each list of requirements, in the user's cache.
"""

import contextlib
import hashlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import READY_TIMEOUT_S, Server
from tests.foreign_programs.page import PAGE, TOKENIZER
from tetrad.services.hub.model_files import CacheSettings

REQUIREMENTS = Path(__file__).with_name("requirements.txt")


def environment_of(requirements: Path) -> Path:
    """Return where the programs of an environment with these packages are; it is made where it is missing."""
    digest = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:12]
    home = CacheSettings().directory() / f"foreign-{digest}"
    if not (home / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
        install = [home / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements]
        subprocess.run(install, check=True)
        (home / "complete").touch()
    return home / "bin"


@pytest.fixture(scope="session")
def foreign_bin() -> Path:
    """Return where the gateways and the clients beside them are."""
    return environment_of(REQUIREMENTS)


class Program:
    """A program that runs, with its output in a file."""

    def __init__(self, command: str, foreign_bin: Path, log: Path) -> None:
        self.log = log
        # Offline: whatever a program would fetch, it must not need.
        environment = os.environ | {"PATH": f"{foreign_bin}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
        with log.open("wb") as file:
            self.process = subprocess.Popen(shlex.split(command), stdout=file, stderr=subprocess.STDOUT, env=environment)

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_serving(self, url: str, model: str) -> None:
        """Wait until it answers a chat at `url`."""
        body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.output()
            with contextlib.suppress(httpx.TransportError):
                if httpx.post(f"{url}/v1/chat/completions", json=body, timeout=30).status_code == 200:
                    return
            time.sleep(0.2)
        raise AssertionError(f"no answer from {url}:\n{self.output()}")

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(3)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="session")
def tokenizer_directory(tmp_path_factory) -> Path:
    """Return the directory that is the model's name; `model_stack` fills it."""
    return tmp_path_factory.mktemp("tokenizer")


@pytest.fixture(scope="session")
def model_stack(tmp_path_factory, smollm2, tokenizer_directory) -> Iterator[Server]:
    """The stack over the real model, under a name that vllm-router can load a tokenizer from."""
    flags = ["--device", "cpu", "--threads", "1", "--max-model-len", "2048", "--served-model-name", str(tokenizer_directory)]
    server = Server(tmp_path_factory.mktemp("model") / "log", *flags)
    try:
        server.wait_ready()
        fetch = PAGE.block("GetTokenizer", language="python").replace("127.0.0.1:50050", server.grpc_target)
        subprocess.run([sys.executable, "-c", fetch.replace(TOKENIZER, str(tokenizer_directory))], check=True)
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def start_program(foreign_bin, tmp_path_factory) -> Iterator[Callable[[str], Program]]:
    """Return a starter of programs; they are stopped behind the module's tests."""
    started: list[Program] = []

    def start(command: str) -> Program:
        started.append(Program(command, foreign_bin, tmp_path_factory.mktemp("program") / "log"))
        return started[-1]

    yield start
    for program in started:
        program.stop()


@pytest.fixture(scope="module")
def start_sim(tmp_path_factory) -> Iterator[Callable[..., Server]]:
    """Return a starter of stacks over a simulated device that takes 5 ms a step."""
    started: list[Server] = []

    def start(*flags: str) -> Server:
        log = tmp_path_factory.mktemp("sim") / "log"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TETRAD_WORKER_SIM_SECONDS_PER_STEP", "0.005")
            started.append(Server(log, "--device", "sim", "--max-model-len", "2048", *flags))
        return started[-1].wait_ready()

    yield start
    for server in started:
        server.stop()
