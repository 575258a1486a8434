"""`tetrad run-batch`: every line gets one result, also when the run is killed or the disk is full."""

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.tetrad.cli.commands import tetrad

NUM_REQUESTS = 240


def command(source: Path, target: Path, *flags: str) -> list[str]:
    return [sys.executable, "-m", "tetrad.cli", "run-batch", "-i", str(source), "-o", str(target), *flags]


def run(source: Path, target: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return tetrad("run-batch", "-i", str(source), "-o", str(target), *flags)


def write_lines(path: Path, lines: Sequence[object]) -> Path:
    path.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in lines))
    return path


def completion(custom_id: str, **body: object) -> dict[str, object]:
    fields = {"model": "smollm2-135m-instruct", "prompt": f"Say {custom_id}", "max_tokens": 24, "ignore_eos": True, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": fields}


def results_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_full_disk_ends_the_run_with_one_line_and_the_next_run_goes_on(sim_server, batch, tmp_path):
    """A limit on the size of files stands in for the disk."""
    target = tmp_path / "out.jsonl"
    url = ("--url", sim_server.url)

    # Not by a function after a fork: gRPC writes a line of its own then, if this process has used it.
    limited = ["bash", "-c", 'ulimit -f 10 && exec "$@"', "bash", *command(batch, target, *url)]
    full = subprocess.run(limited, capture_output=True, text=True, timeout=120)
    again = run(batch, target, *url)

    lines = [line for line in full.stderr.splitlines() if line and not line.startswith("Running batch")]
    assert full.returncode == 1
    assert lines == [f"tetrad: Cannot write {target}: File too large. Run the same command again to go on."]
    assert again.returncode == 0
    assert Counter(result["custom_id"] for result in results_of(target)) == dict.fromkeys(custom_ids(batch), 1)


def custom_ids(batch: Path) -> list[str]:
    return [json.loads(line)["custom_id"] for line in batch.read_text().splitlines()]


@pytest.fixture
def batch(tmp_path) -> Path:
    return write_lines(tmp_path / "in.jsonl", [completion(f"request-{number}") for number in range(NUM_REQUESTS)])


def stop_midway(source: Path, target: Path, url: str, number: signal.Signals, *, after: int) -> tuple[int, str]:
    """Start a run, send it a signal once the output has so many lines, and return its exit code and stderr."""
    process = subprocess.Popen(
        command(source, target, "--url", url, "--concurrency", "4"),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not target.exists() or target.read_bytes().count(b"\n") < after:
        assert time.monotonic() < deadline
        assert process.poll() is None, "the batch was over too soon"
        time.sleep(0.005)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=30)
    return process.returncode, stderr


def test_killed_runs_go_on_where_they_stopped(sim_server, batch, tmp_path):
    target = tmp_path / "out.jsonl"

    killed, _ = stop_midway(batch, target, sim_server.url, signal.SIGKILL, after=40)
    num_after_kill = target.read_bytes().count(b"\n")
    with target.open("ab") as file:
        file.write(b'{"id": "batch_req_12')  # what a machine that lost its power may leave
    stopped, stderr = stop_midway(batch, target, sim_server.url, signal.SIGTERM, after=num_after_kill + 40)
    num_after_stop = target.read_bytes().count(b"\n")
    last = run(batch, target, "--url", sim_server.url)
    again = run(batch, target, "--url", sim_server.url)

    assert (killed, stopped, last.returncode, again.returncode) == (-signal.SIGKILL, 128 + signal.SIGTERM, 0, 0)
    assert "run the same command again" in stderr
    assert f"{num_after_stop} of {NUM_REQUESTS} requests are in" in last.stderr
    assert f"{NUM_REQUESTS} of {NUM_REQUESTS} requests are in" in again.stderr
    counts = Counter(result["custom_id"] for result in results_of(target))
    assert counts == {f"request-{number}": 1 for number in range(NUM_REQUESTS)}
    assert all(result["response"]["status_code"] == 200 for result in results_of(target))


def test_every_kind_of_line_gets_a_result_from_a_server_of_its_own(smollm2, tmp_path):
    chat = {"model": "sim", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "ignore_eos": True}
    source = write_lines(
        tmp_path / "in.jsonl",
        [
            completion("text", model="sim", max_tokens=4),
            {"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions", "body": chat},
            completion("wrong", model="sim", temperature=-1),
            {"custom_id": "elsewhere", "method": "POST", "url": "/v1/images", "body": {}},
            '{"custom_id": "torn", "me',
        ],
    )
    target = tmp_path / "out.jsonl"

    result = run(source, target, "--model", str(smollm2), "--served-model-name", "sim", "--device", "sim")

    assert result.returncode == 1, result.stderr
    assert "2 of 5 requests succeeded, 3 failed" in result.stdout
    assert "5/5" in result.stderr
    found = {each["custom_id"]: each for each in results_of(target)}
    assert len(results_of(target)) == len(found) == 5
    text, chat = found["text"]["response"], found["chat"]["response"]
    assert (text["status_code"], text["body"]["usage"]["completion_tokens"]) == (200, 4)
    assert text["request_id"] in text["body"]["id"]
    assert (chat["status_code"], chat["body"]["choices"][0]["message"]["role"]) == (200, "assistant")
    assert found["wrong"]["response"]["status_code"] == 400
    assert "temperature must be" in found["wrong"]["response"]["body"]["error"]["message"]
    assert found["elsewhere"]["error"]["code"] == "invalid_url"
    assert (found[None]["error"]["code"], found[None]["error"]["line"]) == ("invalid_json", 5)


def test_lines_that_failed_are_an_exit_code_and_those_whose_reason_may_pass_are_sent_again(sim_server, tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_lines(
        source, [completion("good", max_tokens=2), completion("busy", max_tokens=2), completion("wrong", temperature=-1)]
    )
    failed = {"id": "batch_req_1", "custom_id": "busy", "response": {"status_code": 503, "request_id": "r", "body": {}}}
    write_lines(target, [failed | {"error": None}])

    first = run(source, target, "--url", sim_server.url)
    second = run(source, target, "--url", sim_server.url)

    assert (first.returncode, second.returncode) == (1, 1)
    assert "2 of 3 requests succeeded, 1 failed" in first.stdout
    assert f"3 of 3 requests are in {target} already, 1 of them failed" in second.stderr
    statuses = {each["custom_id"]: each["response"]["status_code"] for each in results_of(target)}
    assert statuses == {"good": 200, "busy": 200, "wrong": 400}
    assert len(results_of(target)) == 3


@pytest.mark.parametrize(
    ("lines", "flags", "words"),
    [
        ([completion("a"), completion("b"), completion("a")], (), "custom_id 'a' is on line 1 and again on line 3"),
        ([completion("a")], ("--url", "http://127.0.0.1:9"), "No server answers at http://127.0.0.1:9"),
        ([completion("a")], ("--url", "http://127.0.0.1:9", "--device", "sim"), "leave --model and the engine's flags out"),
        ([completion("a")], ("--concurrency", "0"), "--concurrency must be more than 0, got 0"),
    ],
)
def test_what_no_run_could_do_is_one_line_and_nothing_is_written(tmp_path, lines, flags, words):
    source, target = write_lines(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"

    result = run(source, target, *flags)

    assert result.returncode != 0
    assert result.stderr.count("\n") == 1, result.stderr
    assert words in result.stderr
    assert not target.exists() or not target.read_bytes()


def test_the_input_cannot_be_the_output(tmp_path):
    source = write_lines(tmp_path / "in.jsonl", [completion("a")])
    before = source.read_bytes()

    result = run(source, source)

    assert "the output must be another file" in result.stderr
    assert source.read_bytes() == before
