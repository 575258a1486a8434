"""SIGTERM to each service, by its own command: idle, while it loads, under load; a second one ends it at once."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import httpx
import psutil
import pytest

MODEL = "smollm2-135m-instruct"
DEADLINE_S = 60
PROMPT_S = 15.0  # ample on a loaded machine, and far from the minute for which services wait for each other
SETTINGS = {
    "tokenizer_svc": {"TETRAD_TOKENIZER_MODEL": MODEL},
    "worker_svc": {"TETRAD_WORKER_DEVICE": "sim"},
    "engine_core_svc": {
        "TETRAD_ENGINE_CORE_WORKER_TARGET": "unix:/nobody",
        "TETRAD_ENGINE_CORE_MODEL": MODEL,
        "TETRAD_ENGINE_CORE_ADMIN_LISTEN": "127.0.0.1:0",
    },
    "frontend": {"TETRAD_FRONTEND_PORT": "0", "TETRAD_FRONTEND_RESPONSES_STORE": "none"},
}
PREFIXES = {"tokenizer_svc": "TOKENIZER", "worker_svc": "WORKER", "engine_core_svc": "ENGINE_CORE", "frontend": "FRONTEND"}


@pytest.fixture
def start_service():
    """Return a starter of `python -m tetrad.PACKAGE`; what it started is killed behind the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(package: str, **settings: str) -> subprocess.Popen[bytes]:
        environment = os.environ | SETTINGS[package] | settings
        started.append(subprocess.Popen([sys.executable, "-m", f"tetrad.{package}"], env=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "never"
        time.sleep(0.02)


@pytest.mark.parametrize("package", SETTINGS)
def test_an_idle_service_ends_at_once_with_code_0(start_service, socket_directory, package):
    """The engine core and the frontend still wait for those behind them."""
    path = socket_directory / "x.sock"
    name = "PRIVATE_LISTEN" if package == "frontend" else "LISTEN"
    process = start_service(package, **{f"TETRAD_{PREFIXES[package]}_{name}": f"unix:{path}"})
    until(path.exists)

    process.send_signal(signal.SIGTERM)

    assert process.wait(PROMPT_S) == 0


@pytest.mark.parametrize("package", ["tokenizer_svc", "worker_svc"])
def test_a_service_that_loads_its_model_ends_at_once_with_code_0(start_service, socket_directory, package):
    place = socket_directory / "models" / MODEL
    place.mkdir(parents=True)
    prefix = f"TETRAD_{PREFIXES[package]}"
    settings = {f"{prefix}_MODEL": MODEL, f"{prefix}_LISTEN": f"unix:{socket_directory}/x.sock"}
    with (place / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as if another process fetched it
        process = start_service(package, TETRAD_CACHE_DIR=str(socket_directory), **settings)
        until(lambda: [file for file in psutil.Process(process.pid).open_files() if file.path.endswith(".lock")])

        process.send_signal(signal.SIGTERM)

        assert process.wait(PROMPT_S) == 0


def test_the_whole_stack_ends_at_once_while_it_loads(start_server):
    server = start_server("--device", "sim")
    until(lambda: len(server.processes()) >= 5)

    server.process.send_signal(signal.SIGTERM)

    assert server.process.wait(PROMPT_S) == 0


@pytest.fixture(scope="module")
def busy(start_module_server):
    """A stack whose requests of 8,000 tokens take 80 s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TETRAD_WORKER_SIM_SECONDS_PER_STEP", "0.01")
        patch.setenv("TETRAD_FRONTEND_DRAIN_TIMEOUT_S", "3")  # a second signal comes earlier on a busy machine, too
        return start_module_server("--device", "sim", "--max-model-len", "8192")


@pytest.mark.parametrize(
    ("package", "says"),
    [("worker_svc", "worker restarting"), ("engine_core_svc", "engine-core restarting"), ("tokenizer_svc", "tokenizer")],
)
def test_a_busy_service_hands_its_work_back_and_ends_with_code_0(busy, package, says):
    body = {"model": MODEL, "prompt": package, "max_tokens": 60, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{busy.url}/v1/completions", json=body, timeout=DEADLINE_S) as response:
        lines = response.iter_lines()
        next(lines)

        busy.process_of(package).send_signal(signal.SIGTERM)
        texts = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]

    until(lambda: any(says in line and "(exit code 0)" in line for line in busy.output().splitlines()))
    assert texts[-1]["finish_reason"] == "length"


@pytest.mark.parametrize(("num_signals", "code"), [(1, 0), (2, 1)])
def test_a_busy_frontend_drains_and_ends_with_code_0_and_at_once_if_told_again(busy, num_signals, code):
    body = {"model": MODEL, "prompt": "x", "max_tokens": 8000, "ignore_eos": True, "stream": True}
    process = busy.process_of("frontend")
    until(lambda: httpx.get(f"{busy.url}/health").status_code == 200)
    with httpx.stream("POST", f"{busy.url}/v1/completions", json=body, timeout=DEADLINE_S) as response:
        lines = response.iter_lines()
        next(lines)
        before = len(busy.output())

        process.send_signal(signal.SIGTERM)
        next(line for line in lines if line)  # it goes on
        if num_signals == 2:
            process.send_signal(signal.SIGTERM)

        until(lambda: f"frontend restarting (exit code {code})" in busy.output()[before:])
