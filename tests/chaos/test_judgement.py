"""The checks of a chaos run can fail: every kind of wrong answer and every kind of leak is found."""

import copy
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import psutil
import pytest

from tests.chaos.answers import Answer, is_beginning, judge
from tests.chaos.catalogue import Request
from tests.chaos.checks import (
    MARK,
    EngineLoad,
    StackState,
    count_files,
    find_exceptions,
    find_leaks,
    find_remains,
    marked_processes,
    process_state,
)
from tests.chaos.client import Outcome
from tests.chaos.load import Tally
from tests.chaos.recovery import Struck, TokenClock, longest_silence, recovery_times
from tests.chaos.schedule import Fault


def chunk(text: str, ids: list[int], *, finish: str | None = None, index: int = 0) -> dict:
    positions = [
        {"token": f"t{token_id}", "logprob": -float(token_id), "top_logprobs": [{"token": "x", "logprob": -9.0}]}
        for token_id in ids
    ]
    delta = {"content": text}
    return {
        "choices": [
            {"index": index, "delta": delta, "token_ids": ids, "logprobs": {"content": positions}, "finish_reason": finish}
        ]
    }


CHUNKS = [chunk("a", [1]), chunk("b", [2]), chunk("c", [3]), chunk("d", [4], finish="length")]
USAGE = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}}


def answer(*chunks: dict, endings: int = 1) -> Answer:
    made = Answer(endings=endings)
    for each in chunks:
        made.add(each)
    return made


EXPECTED = answer(*CHUNKS, USAGE)


def without_finish(each: dict) -> dict:
    each = copy.deepcopy(each)
    each["choices"][0]["finish_reason"] = None
    return each


@pytest.mark.parametrize(
    ("verdict", "came"),
    [
        ("equal", answer(*CHUNKS, USAGE)),
        ("equal", answer(chunk("ab", [1, 2]), *CHUNKS[2:], USAGE)),
        ("lost", answer(*CHUNKS[:3], USAGE)),
        ("lost", answer(CHUNKS[0], *CHUNKS[2:], USAGE)),
        ("lost", answer(*CHUNKS[:3], without_finish(CHUNKS[3]), USAGE)),
        ("lost", answer(*CHUNKS, USAGE, endings=0)),
        ("lost", answer(USAGE)),
        ("duplicated", answer(CHUNKS[0], *CHUNKS, USAGE)),
        ("duplicated", answer(*CHUNKS, CHUNKS[3], USAGE)),
        ("duplicated", answer(*CHUNKS, USAGE, endings=2)),
        ("different", answer(*CHUNKS[:2], chunk("x", [3]), CHUNKS[3], USAGE)),
        ("different", answer(*CHUNKS[:2], chunk("c", [7]), CHUNKS[3], USAGE)),
        ("different", answer(*CHUNKS[:3], chunk("d", [4], finish="stop"), USAGE)),
        ("different", answer(*CHUNKS)),
    ],
)
def test_each_wrong_answer_has_its_name(verdict, came):
    assert judge(EXPECTED, came) == verdict


def test_log_probabilities_are_compared_within_the_tolerance():
    came = copy.deepcopy(EXPECTED)
    token, value, rivals, offset = came.choices[0].logprobs[2]
    came.choices[0].logprobs[2] = (token, value + 1e-5, rivals, offset)

    assert judge(EXPECTED, came, tolerance=1e-4) == "equal"
    assert judge(EXPECTED, came) != "equal"


def test_what_a_client_saw_before_it_left_must_be_the_beginning():
    assert is_beginning(EXPECTED, answer(*CHUNKS[:2], endings=0))
    assert not is_beginning(EXPECTED, answer(CHUNKS[1], endings=0))


def test_a_tally_counts_errors_as_lost_and_looks_at_abandoned_attempts():
    tally, request = Tally(), Request("r", "/v1/completions", {})

    tally.take(Outcome(request, EXPECTED), EXPECTED)
    tally.take(Outcome(request, EXPECTED, error="503"), EXPECTED)
    tally.take(Outcome(request, EXPECTED, abandoned=[answer(CHUNKS[3], endings=0)]), EXPECTED)

    assert tally.verdicts == {"equal": 1, "lost": 1, "different": 1}
    assert [failure.verdict for failure in tally.failures] == ["lost", "different"]


# --- leaks ------------------------------------------------------------------------------------------------------------

PROCESS = process_state(os.getpid())
STATE = StackState(
    {"worker": PROCESS}, num_processes=4, files=Counter({"worker.sock": 1, "frontend.sock": 1}), num_harness_fds=20
)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"num_processes": 5}, "5 processes, 4 before"),
        ({"files": STATE.files + Counter({"core": 1})}, "new files beside the sockets: core"),
        ({"files": STATE.files + Counter({"frontend.sock": 1})}, "new files beside the sockets: frontend.sock"),
        ({"num_harness_fds": 30}, "harness has 30 descriptors"),
        ({"processes": {}}, "worker: does not run"),
    ],
)
def test_what_a_stack_holds_too_much_is_found(fields, text):
    [leak] = find_leaks(STATE, dataclasses.replace(STATE, **fields))

    assert text in leak


def test_a_restarted_frontends_socket_and_a_groups_file_take_the_place_of_the_first_ones():
    before = count_files(["frontend.sock", "worker.sock", "worker.sock.group-1"])
    after = count_files(["worker.sock", "frontend-5.sock", "worker.sock.group-72"])

    assert find_leaks(dataclasses.replace(STATE, files=before), dataclasses.replace(STATE, files=after)) == []


@pytest.mark.parametrize(
    ("name", "more", "text"),
    [
        ("num_fds", 5, "descriptors"),
        ("num_threads", 5, "threads"),
        ("num_children", 1, "child processes"),
        ("rss_bytes", PROCESS.rss_bytes // 19, "MiB resident"),
    ],
    ids=["descriptors", "threads", "children", "memory"],
)
def test_what_a_process_holds_too_much_is_found(name, more, text):
    grown = dataclasses.replace(PROCESS, **{name: getattr(PROCESS, name) + more})

    [leak] = find_leaks(STATE, dataclasses.replace(STATE, processes={"worker": grown}))

    assert leak.startswith("worker: ")
    assert text in leak


def test_a_state_that_is_the_same_has_no_leaks():
    assert find_leaks(STATE, STATE) == []


def test_open_files_threads_and_children_are_counted(tmp_path):
    before, go_on = process_state(os.getpid()), threading.Event()
    thread = threading.Thread(target=go_on.wait)
    thread.start()

    with (tmp_path / "file").open("w"), subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        during = process_state(os.getpid())
        child.communicate(b"\n")

    go_on.set()
    thread.join()
    assert during.num_fds >= before.num_fds + 2
    assert during.num_threads == before.num_threads + 1
    assert during.num_children == before.num_children + 1


def test_a_process_that_is_left_is_found_by_the_mark_of_its_run():
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=os.environ | {MARK: "mine"}) as child:
        [remains] = find_remains("mine", Path("/nonexistent"), timeout_s=0)
        assert marked_processes("another") == []
        child.communicate(b"\n")

    assert str(child.pid) in remains
    assert not psutil.pid_exists(child.pid)


def test_an_exception_in_a_log_is_found(tmp_path):
    lost = json.dumps({"service": "frontend", "level": "warning", "event": "engine.lost"})
    failed = json.dumps({"service": "worker", "event": "rpc.failed", "exception": "Traceback ...\nValueError: -73"})
    log = tmp_path / "log"
    log.write_text(f"{lost}\nno JSON\n{failed}\n")

    assert find_exceptions(log) == ["worker logged an exception: 'rpc.failed': ValueError: -73"]


def test_a_directory_that_is_left_is_found(tmp_path):
    assert find_remains("mine", tmp_path, timeout_s=0) == [f"{tmp_path} is left"]


def test_a_service_collects_its_garbage_when_told_and_lives_on():
    source = (
        "import gc, sys\ngc.callbacks.append(lambda phase, info: print(phase, flush=True))\nprint('up', flush=True)\ninput()"
    )
    hooks = str(Path(__file__).with_name("hooks"))
    with subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": hooks}
    ) as child:
        assert child.stdout.readline() == b"up\n"
        child.send_signal(signal.SIGUSR2)
        assert child.stdout.readline() == b"start\n"
        child.communicate(b"\n")

    assert child.returncode == 0


@pytest.mark.parametrize("load", [(1, 0, 10, 9), (0, 1, 10, 9), (0, 0, 10, 8)])
def test_an_engine_that_runs_queues_or_holds_a_block_is_not_idle(load):
    assert not EngineLoad(*load).is_idle
    assert EngineLoad(0, 0, 10, 9).is_idle


# --- recovery times -------------------------------------------------------------------------------------


KILL = Struck(Fault(0, "kill", "worker"), 1.02)


def clock_of(*streams: list[float]) -> TokenClock:
    clock = TokenClock()
    for number, times in enumerate(streams):
        clock.streams[number] = times
    return clock


def test_recovery_is_the_longest_pause_of_a_stream_that_was_open():
    clock = clock_of([0.9, 1.0, 1.05, 3.0, 3.1], [0.9, 1.0, 1.1, 1.2], [1.5, 4.0])

    [recovery] = recovery_times([KILL], clock, end=9.0)["worker"].measured
    assert recovery.pause_s == pytest.approx(3.0 - 1.05)


def test_a_pause_long_after_the_kill_is_not_its_doing():
    clock = clock_of([0.9, 1.0, 1.1, 1.9, 2.0, 3.5])

    [recovery] = recovery_times([KILL], clock, end=9.0)["worker"].measured
    assert recovery.pause_s == pytest.approx(0.8)


def test_tokens_flow_again_when_the_first_stream_has_some():
    clock = clock_of([0.9, 1.0, 1.05, 3.0], [0.9, 1.0, 2.5, 2.6])

    [recovery] = recovery_times([KILL], clock, end=9.0)["worker"].measured
    assert recovery.again_s == pytest.approx(2.5 - 1.02)


def test_a_recovery_that_the_next_fault_cuts_off_is_not_measured():
    clock = clock_of([0.9, 1.0, 3.0], [0.9, 1.0, 1.1])

    assert recovery_times([KILL], clock, end=2.0)["worker"].num_unmeasured == 1


def test_a_kill_during_another_fault_is_not_measured():
    frozen = Struck(Fault(0, "freeze", "worker", 3), 0.5)

    assert recovery_times([frozen, KILL], clock_of([0.9, 2.5]), end=9.0)["worker"].num_unmeasured == 1


def test_the_longest_silence_is_that_of_all_streams_together():
    clock = clock_of([0.9, 2.0, 5.0], [1.0, 3.5])

    assert longest_silence([KILL], clock) == (pytest.approx(1.5), KILL)


EMBEDDED = {"data": [{"embedding": [0.1, 0.2]}, {"embedding": [0.3, 0.4]}], "usage": USAGE["usage"]}


@pytest.mark.parametrize(
    ("data", "verdict"),
    [
        (EMBEDDED["data"], "equal"),
        ([{"embedding": [0.1, 0.2004]}, EMBEDDED["data"][1]], "equal"),
        (EMBEDDED["data"][:1], "lost"),
        (EMBEDDED["data"] * 2, "duplicated"),
        (EMBEDDED["data"][::-1], "different"),
        ([{"embedding": [0.1, 0.202]}, EMBEDDED["data"][1]], "different"),
    ],
)
def test_embeddings_are_judged_by_their_number_order_and_values(data, verdict):
    assert judge(answer(EMBEDDED), answer(EMBEDDED | {"data": data}), tolerance=1e-3) == verdict
