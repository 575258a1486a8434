"""docs/quickstart.md, run as written and in its order; only addresses are the test's own."""

import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from benchmarks.stack import free_ports
from tests.documents import ROOT, Page
from tests.e2e.conftest import READY_TIMEOUT_S

ADDRESS = "http://127.0.0.1:8000"
PAGE = Page.of("docs/quickstart.md")


def as_user(commands: str) -> str:
    """Return commands as they run where the package may be installed elsewhere than in .venv."""
    scripts = Path(sys.executable).parent
    return commands.replace(".venv/bin/", f"{scripts}/").replace("curl ", "curl -sS --fail-with-body ")


def run(commands: str, *, timeout_s: float, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    # Each command must succeed, not the last alone.
    call = ["bash", "-euc", as_user(commands)]
    ran = subprocess.run(call, capture_output=True, text=True, timeout=timeout_s, cwd=cwd, env=os.environ | (env or {}))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_make_serve_starts_what_the_page_says():
    told = subprocess.run(["make", "-n", "serve"], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert PAGE.block("make serve") == "make serve\n"
    assert "bin/tetrad serve smollm2-135m-instruct" in told


@pytest.mark.parametrize(
    ("word", "expected"),
    [("v1/chat/completions", "Paris"), ("chat -q", "Paris"), ("tetrad bench", "tetrad:num_requests_running")],
)
def test_what_the_page_asks_is_answered(server, word, expected):
    with_url = re.sub(r"tetrad (chat|complete|status)", rf"tetrad \1 --url {ADDRESS}", PAGE.block(word))

    assert expected in run(with_url.replace(ADDRESS, server.url), timeout_s=60)


def test_a_killed_worker_costs_the_story_nothing(server, tmp_path):
    commands = (
        PAGE.block("kill -9").replace("tetrad complete", f"tetrad complete --url {server.url}").replace(ADDRESS, server.url)
    )

    # A quarter of the page's tokens, and less of its sleep: the kill still comes in their midst, on a fast machine, too.
    assert "--max-tokens 800" in commands
    assert "sleep 1\n" in commands
    commands = commands.replace("--max-tokens 800", "--max-tokens 200").replace("sleep 1\n", "sleep 0.3\n")
    # First, as `tetrad status` fails while a killed worker is away.
    undisturbed = run(commands.replace("kill -9", "true"), timeout_s=120, cwd=tmp_path)
    killed = run(commands, timeout_s=120, cwd=tmp_path)

    assert re.search(rf"^worker +unix:{server.stack_directory()}/worker.sock  ready  pid [0-9]+$", killed, re.MULTILINE)
    assert killed.splitlines()[-1] == undisturbed.splitlines()[-1]
    assert int(killed.splitlines()[-1].split()[0]) > 50
    server.wait_for_log("worker restarting")


def test_the_library_prints_what_follows():
    program = PAGE.block("import LLM", language="python")

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, cwd=ROOT)

    assert "The capital of France is Paris" in ran.stdout, ran.stderr
    assert "Traceback" not in ran.stderr  # the program closes nothing: its end does


def test_four_services_started_by_hand_are_a_server(tmp_path):
    commands = PAGE.block("tetrad worker")
    worker, tokenizer, engine, admin, http = free_ports(5)
    # The page's addresses are the defaults; these are the same in other places.
    env = {
        "TETRAD_WORKER_LISTEN": f"127.0.0.1:{worker}",
        "TETRAD_WORKER_DEVICE": "sim",
        "TETRAD_TOKENIZER_LISTEN": f"127.0.0.1:{tokenizer}",
        "TETRAD_ENGINE_CORE_LISTEN": f"127.0.0.1:{engine}",
        "TETRAD_ENGINE_CORE_ADMIN_LISTEN": f"127.0.0.1:{admin}",
        "TETRAD_ENGINE_CORE_WORKER_TARGET": f"127.0.0.1:{worker}",
        "TETRAD_ENGINE_CORE_TOKENIZER_TARGETS": f"127.0.0.1:{tokenizer}",
        "TETRAD_FRONTEND_PORT": str(http),
        "TETRAD_FRONTEND_TOKENIZER_TARGETS": f"127.0.0.1:{tokenizer}",
        "TETRAD_FRONTEND_ENGINE_TARGETS": f"127.0.0.1:{engine}",
        "TETRAD_FRONTEND_ENGINE_ADMIN_TARGETS": f"127.0.0.1:{admin}",
    }
    log = tmp_path / "log"
    with log.open("wb") as file:
        shell = subprocess.Popen(
            ["bash", "-c", as_user(commands)],
            cwd=ROOT,
            env=os.environ | env,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_healthy(f"http://127.0.0.1:{http}", log)
        ready = PAGE.block("tetrad.readiness").replace("127.0.0.1:50053", f"127.0.0.1:{worker}")
        said = run(ready, timeout_s=30)
        answer = httpx.post(f"http://127.0.0.1:{http}/v1/completions", json={"prompt": "x", "max_tokens": 3}, timeout=30)
    finally:
        os.killpg(shell.pid, 15)
        shell.wait(20)

    assert answer.json()["usage"]["completion_tokens"] == 3
    assert said == "it takes work\n"


def wait_healthy(url: str, log: Path) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health").status_code == 200:
                return
        time.sleep(0.1)
    raise AssertionError(f"not healthy after {READY_TIMEOUT_S} s:\n{log.read_text()}")
