"""A sandbox's process answers, or is killed in time; the next exchange starts a new one."""

import contextlib
import os
import resource
import subprocess
import threading
import time
from pathlib import Path

import psutil
import pytest

from tetrad.services.errors import InternalError, Unavailable
from tetrad.services.sandbox.sandbox import Sandbox, SandboxDied, SandboxTimeout

STRANGER = """
import os
from tetrad.services.sandbox.process import serve_frames

def prepare(hello):
    def answer(question):
        match question:
            case b"loop":
                while True:
                    pass
            case b"crash":
                os.abort()
            case b"swell":
                return bytes(1 << 32)
        return hello + b" " + question + b" " + str(os.getpid()).encode()
    return answer

serve_frames(prepare)
"""


@pytest.fixture
def sandbox(tmp_path, monkeypatch):
    (tmp_path / "stranger.py").write_text(STRANGER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    sandbox = Sandbox("stranger", memory_bytes=1 << 30, timeout_s=1.0, hello=lambda: b"hello")
    yield sandbox
    sandbox.close()


def pid_of(sandbox) -> int:
    return int(sandbox.exchange(b"who").split()[-1])


def test_one_process_answers_every_question_and_knows_what_it_was_told_first(sandbox):
    answers = [sandbox.exchange(question) for question in (b"a", b"b")]

    assert [answer.split()[:2] for answer in answers] == [[b"hello", b"a"], [b"hello", b"b"]]
    assert answers[0].split()[2] == answers[1].split()[2]


def test_large_questions_arrive_whole(sandbox):
    question = bytes(range(1, 9)) * 250_000

    assert sandbox.exchange(question).split()[1] == question


def test_a_stopped_process_is_given_up_even_if_it_does_not_read_the_question(sandbox):
    stopped = psutil.Process(pid_of(sandbox))
    stopped.suspend()

    with pytest.raises(SandboxTimeout):
        sandbox.exchange(b"x" * (1 << 20))

    assert pid_of(sandbox) != stopped.pid


def test_the_limit_of_memory_does_not_depend_on_the_number_of_cores(sandbox, tmp_path, monkeypatch):
    """Otherwise numpy's library starts a thread for each core, with 40 MB of address space: on 64 cores almost the limit."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (tmp_path / "stranger.py").write_text("import numpy\n" + STRANGER)

    process = psutil.Process(pid_of(sandbox))

    assert process.num_threads() == 1


def test_an_interruption_while_the_process_is_being_started_is_not_lost(sandbox, monkeypatch):
    started, popen = [], subprocess.Popen

    def interrupted(*args, **kwargs):
        sandbox.interrupt()
        started.append(popen(*args, **kwargs))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", interrupted)

    with pytest.raises(Unavailable):
        sandbox.exchange(b"a")

    assert started[0].returncode is not None


def test_a_program_with_thousands_of_open_files_gets_answers(sandbox):
    """As in one process with the frontend, whose connections are open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    try:
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(Path(os.devnull).open()) for _ in range(1100)]
            assert files[-1].fileno() >= 1024  # select.select cannot watch it

            assert sandbox.exchange(b"a").startswith(b"hello a")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(("question", "error"), [(b"loop", SandboxTimeout), (b"crash", SandboxDied), (b"swell", SandboxDied)])
def test_a_process_that_fails_is_gone_and_the_next_question_has_a_new_one(sandbox, question, error):
    first = pid_of(sandbox)

    with pytest.raises(error):
        sandbox.exchange(question)

    assert not psutil.pid_exists(first)
    assert pid_of(sandbox) != first


def test_a_process_that_was_killed_between_two_questions_does_not_fail_the_second(sandbox):
    first = pid_of(sandbox)
    killed = psutil.Process(first)
    killed.kill()
    while killed.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.001)

    assert pid_of(sandbox) != first


def test_an_interrupt_ends_the_exchange_that_runs_and_every_later_one(sandbox):
    sandbox.start()
    began = time.monotonic()
    thread = threading.Timer(0.1, sandbox.interrupt)
    thread.start()

    for _ in range(2):
        with pytest.raises(Unavailable, match="stopping"):
            sandbox.exchange(b"loop")
    thread.join()

    assert time.monotonic() - began < 0.9  # its own time was not up


def test_a_module_that_does_not_start_is_said_to(monkeypatch):
    with pytest.raises(InternalError, match="no_such_module does not start"):
        Sandbox("no_such_module", memory_bytes=1 << 30, timeout_s=1.0).start()


def test_the_end_of_the_parents_pipe_is_the_end_of_the_process(sandbox):
    process = psutil.Process(pid_of(sandbox))

    sandbox._process.stdin.close()

    assert process.wait(5) is not None or not process.is_running()
