"""`tetrad bench` as a user runs it."""

import json
import os
import re
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.documents import Page
from tests.tetrad.cli.commands import assert_one_line, tetrad

LOAD = ("--concurrency", "4", "--num-requests", "8", "--input-len", "20", "--output-len", "12")


def bench(*arguments):
    return tetrad("bench", *arguments)


def test_a_running_server_is_measured(sim_server, tmp_path):
    result = bench("--url", sim_server.url, *LOAD, "--result", str(tmp_path / "r.json"))

    assert result.returncode == 0, result.stderr
    assert "P99 ITL (ms)" in result.stdout
    (level,) = json.loads((tmp_path / "r.json").read_text())["levels"]
    (figures,) = level["servers"]
    assert (figures["completed"], figures["failed"]) == (8, 0)
    assert figures["total_output_tokens"] == 8 * 12
    assert figures["total_input_tokens"] == 8 * 20
    assert figures["p50_ttft_ms"] > 0


@pytest.mark.parametrize(("word", "shown"), [("--html", "All levels"), ("--against", "Ratios, ")])
def test_the_commands_of_the_page_run(sim_server, tmp_path, word, shown):
    """On the page, the two servers are different ones, and the requests are more."""
    command = re.sub(r"http://127.0.0.1:800\d", sim_server.url, Page.of("docs/benchmarking.md").block(word))
    command, replaced = re.subn(r"--num-requests \d+", "--num-requests 8", command)
    assert replaced == 1
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    result = subprocess.run(
        ["bash", "-euc", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
    )

    assert result.returncode == 0, result.stderr
    assert shown in result.stdout
    assert word != "--html" or {path.name for path in tmp_path.iterdir()} == {"figures.json", "report.html"}


def test_a_sweep_over_two_servers_brings_ratios_and_one_page(sim_server, tmp_path):
    """The same server stands for both: each gets every load."""
    path = tmp_path / "conversations.jsonl"
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    path.write_text(json.dumps({"messages": messages}) + "\n" + json.dumps({"prompt": "d", "output_tokens": 3}) + "\n")
    files = ("--json", str(tmp_path / "r.json"), "--html", str(tmp_path / "r.html"))
    load = ("--num-requests", "4", "--concurrency", "1,2", "--request-rate", "200", "--output-len", "6", "--ttft-ms", "60000")
    dataset = ("--dataset-name", "custom", "--dataset-path", str(path), "--ignore-eos")

    result = bench("--url", sim_server.url, "--against", sim_server.url, "--rounds", "2", *load, *dataset, *files)

    assert result.returncode == 0, result.stderr
    levels = json.loads((tmp_path / "r.json").read_text())["levels"]
    assert [(level["max_concurrency"], level["request_rate"]) for level in levels] == [(1, 200), (2, 200)]
    for level in levels:
        for figures in level["servers"]:
            assert (figures["completed"], figures["total_output_tokens"]) == (2 * 4, 2 * (6 + 3 + 6 + 6))
            assert figures["goodput_share"] == 1
        assert level["ratios"]["p99_ttft_ms"]["min"] <= level["ratios"]["p99_ttft_ms"]["max"]
    page = (tmp_path / "r.html").read_text()
    assert page.count("<svg") >= 10
    assert "://" not in page.replace(sim_server.url, "")


def test_a_server_that_refuses_everything_is_an_error_of_one_line(sim_server):
    """A table would hold nothing but failures. The images alone are longer than the server accepts."""
    load = ("--dataset-name", "random-mm", "--image-size", "8x8", "--num-requests", "2")

    result = bench("--url", sim_server.url, *load)

    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1
    assert "The server answers none of these requests: HTTP status 400: " in result.stderr


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_result_that_cannot_be_written_is_named_after_the_figures(sim_server, option):
    result = bench("--url", sim_server.url, "--num-requests", "2", "--output-len", "2", option, "/dev/full")

    assert "P99 ITL (ms)" in result.stdout
    assert_one_line(result, f"{option} /dev/full cannot be written: No space left on device")


@pytest.mark.parametrize(
    "load",
    [
        ("--input-len", "99999999"),
        ("--output-len", "99999999"),
        ("--dataset-name", "prefix_repetition", "--prefix-len", "99999999"),
    ],
)
def test_requests_that_the_server_must_refuse_are_not_made(sim_server, load):
    """Making prompts of so many tokens takes a minute."""
    started_at = time.monotonic()

    result = bench("--url", sim_server.url, *load)

    assert (result.returncode, result.stdout) == (78, "")
    assert result.stderr.count("\n") == 1
    assert re.search(r"Requests of 10\d+ tokens, prompt and output, exceed the maximum of http", result.stderr)
    assert time.monotonic() - started_at < 20


def test_a_trace_has_the_parts_of_a_step_in_all_four_processes_inside_each_other(tmp_path):
    result = bench("--device", "sim", *LOAD, "--trace", str(tmp_path / "trace.json"))

    assert result.returncode == 0, result.stderr
    spans = Spans(json.loads((tmp_path / "trace.json").read_text())["traceEvents"])
    spans.check_threads_nest()
    for execute in spans.of("worker", "execute"):
        waits = spans.of("engine-core", "wait for worker", step=execute["args"]["step"])
        assert any(contains(wait, execute) for wait in waits)
    for name in ("schedule", "encode plan", "update", "outputs"):
        assert_each_inside_one(spans.of("engine-core", name), spans.of("engine-core", "step"))
    assert_each_inside_one(spans.of("tokenizer", "answer"), spans.of("frontend", "detokenize hop"))
    assert len(spans.of("frontend", "write chunk")) >= 8
    assert "own us/step" in result.stdout


def assert_each_inside_one(parts, wholes):
    outside = [part for part in parts if not any(contains(whole, part) for whole in wholes)]
    assert not outside


class Spans:
    """The spans of a trace, as intervals."""

    def __init__(self, events):
        self.process = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        begun = {(event["pid"], event["id"]): event for event in events if event["ph"] == "b"}
        self.spans = [event for event in events if event["ph"] == "X"]
        for event in events:
            if event["ph"] == "e" and (begin := begun.get((event["pid"], event["id"]))):
                self.spans.append({**begin, "dur": event["ts"] - begin["ts"]})

    def of(self, process, name, step=None):
        """Return the spans of this name; there must be some."""
        found = [
            span
            for span in self.spans
            if self.process[span["pid"]] == process
            and span["name"] == name
            and (step is None or span["args"].get("step") == step)
        ]
        assert found, f"no {name!r} in {process}"
        return found

    def check_threads_nest(self):
        """Two spans of a thread are apart, or one is inside the other."""
        by_thread = {}
        for span in self.spans:
            if span["ph"] == "X":
                by_thread.setdefault((span["pid"], span["tid"]), []).append(span)
        for spans in by_thread.values():
            spans.sort(key=lambda span: (span["ts"], -span["dur"]))
            for earlier, later in pairwise(spans):
                assert later["ts"] >= end_of(earlier) - 0.002 or contains(earlier, later), (earlier, later)


def end_of(span):
    return span["ts"] + span["dur"]


def contains(outer, inner):
    # Written with three decimals of a microsecond.
    return outer["ts"] <= inner["ts"] + 0.002 and end_of(inner) <= end_of(outer) + 0.002
