"""Start and stop of `tetrad serve`: quick, or with one line that names the remedy; never with anything left behind."""

import json
import os
import re
import signal
import time

import httpx
import psutil
import pytest

from tests.e2e.conftest import ONE_TOKENIZER
from tests.e2e.service_manager import service_manager
from tests.e2e.tiny_model import save_tiny_model

SIM = ("--device", "sim", *ONE_TOKENIZER)


def gone(processes: list[psutil.Process], timeout_s: float) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=timeout_s)
    return not alive


@pytest.fixture(scope="module")
def bad_models(tmp_path_factory, smollm2):
    tmp_path = tmp_path_factory.mktemp("bad")
    truncated = tmp_path / "truncated.gguf"
    truncated.write_bytes(smollm2.read_bytes()[:30_000_000])
    # The real file under another architecture's name, which is as long; its first place is general.architecture.
    unsupported = tmp_path / "unsupported.gguf"
    unsupported.write_bytes(smollm2.read_bytes().replace(b"llama", b"plamo", 1))
    unknown, lying = (tmp_path / name for name in ("unknown", "lying"))
    for directory, changes in ((unknown, {"architectures": ["FancyForCausalLM"]}), (lying, {"num_hidden_layers": 3})):
        directory.mkdir()
        save_tiny_model(directory)
        config = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps(config | changes))
    return {
        "missing": tmp_path / "missing.gguf",
        "truncated": truncated,
        "unsupported": unsupported,
        "unknown": unknown,
        "lying": lying,
    }


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("missing", "missing.gguf"),
        ("truncated", "truncated.gguf"),
        # As of a tensor that is missing, below: the worker says it, and the stack ends.
        pytest.param("unsupported", "GGUF architecture .plamo. is not supported", marks=pytest.mark.exhaustive),
        # Likewise; tests/worker_svc/test_service.py has it of a worker.
        pytest.param("unknown", "FancyForCausalLM is not supported: .* docs/models.md", marks=pytest.mark.exhaustive),
        ("lying", "no tensor model.layers.2.[a-z_.]*.weight. .* download the model again"),
    ],
)
def test_a_model_that_cannot_be_served_ends_the_start_with_one_line(start_server, bad_models, kind, word):
    server = start_server(str(bad_models[kind]), *ONE_TOKENIZER)
    processes = server.processes()

    code = server.process.wait(60)

    last = server.output().strip().splitlines()[-1]
    assert code != 0
    assert re.search(word, last)
    assert "Traceback" not in server.output()
    assert gone(processes, 5)


def test_a_model_that_is_truncated_while_it_is_served_ends_everything_with_one_line_when_a_service_needs_it_again(
    start_server, tmp_path, smollm2
):
    """Exit code 78: trying again cannot help until the file is whole."""
    model = tmp_path / "model.gguf"
    model.write_bytes(smollm2.read_bytes())
    server = start_server(str(model), *SIM).wait_ready()
    processes = server.processes()
    before = len(server.output())

    os.truncate(model, 30_000_000)
    server.process_of("worker_svc").kill()
    code = server.process.wait(60)

    own = [line for line in server.output()[before:].splitlines() if line.startswith("tetrad: ")]
    assert code == 78
    assert len(own) == 1
    assert "model.gguf" in own[0]
    assert "truncated" in own[0]
    assert "Traceback" not in server.output()
    assert gone(processes, 5)


# SIGINT while a request runs: below; each server of other tests ends by SIGTERM.
@pytest.mark.exhaustive(short="test_a_signal_while_a_request_runs_still_ends_within_5_s")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything_within_5_s(start_server, number):
    server = start_server(*SIM).wait_ready()
    processes = server.processes()

    start = time.monotonic()
    server.process.send_signal(number)
    code = server.process.wait(10)

    assert time.monotonic() - start < 5
    assert code == 0
    assert gone(processes, 1)


def test_a_signal_while_a_request_runs_still_ends_within_5_s(start_server):
    """A service manager learns of the end."""
    with service_manager() as manager:
        server = start_server(*SIM, "--max-model-len", "8192").wait_ready()
        assert manager.wait_for(1) == ["READY=1"]  # the command learns of it after the frontend's health
        end_with_a_request(server)

        assert manager.wait_for(2) == ["READY=1", "STOPPING=1"]


def end_with_a_request(server) -> None:
    processes = server.processes()
    body = {"model": "smollm2-135m-instruct", "prompt": "x", "max_tokens": 8000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as response:
        next(response.iter_lines())

        server.process.send_signal(signal.SIGINT)
        code = server.process.wait(5)

    assert code == 0
    assert gone(processes, 1)


def test_a_signal_lets_requests_finish_for_the_time_that_a_variable_gives(start_server, monkeypatch):
    """The steps of the request take 2.5 s; without the variable it has less."""
    monkeypatch.setenv("TETRAD_FRONTEND_DRAIN_TIMEOUT_S", "60")
    monkeypatch.setenv("TETRAD_WORKER_SIM_SECONDS_PER_STEP", "0.025")
    server = start_server(*SIM).wait_ready()
    body = {"model": "smollm2-135m-instruct", "prompt": "x", "max_tokens": 100, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)

        server.process.send_signal(signal.SIGTERM)

        assert list(filter(None, lines))[-1] == "data: [DONE]"
    assert server.process.wait(60) == 0


def test_a_second_signal_ends_everything_at_once(start_server):
    server = start_server(*SIM).wait_ready()
    processes = server.processes()
    # So that the first signal alone could not have ended it.
    for process in processes[1:]:
        process.suspend()
    server.process.send_signal(signal.SIGTERM)
    server.process.send_signal(signal.SIGINT)

    start = time.monotonic()
    code = server.process.wait(10)

    assert time.monotonic() - start < 1
    assert code == 1
    _, left = psutil.wait_procs(processes, timeout=0.5)
    # Dead is enough: whoever inherits them collects them when it likes.
    assert not [process for process in left if process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("are_stopped", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_killing_the_command_leaves_no_orphan(start_server, are_stopped):
    server = start_server(*SIM).wait_ready()
    children = server.processes()[1:]
    for child in children * are_stopped:
        child.suspend()

    server.process.kill()

    assert children
    assert gone(children, 10)
