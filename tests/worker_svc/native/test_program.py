"""A program's memory: after an allocation that failed, and with several threads that run programs of one room."""

import threading

import numpy as np
import pytest
import torch

from tests.worker_svc.native.native_programs import NO_HEADS, RUNNABLE, team_of
from tetrad.worker_svc.native import program
from tetrad.worker_svc.native.linears import NativeLinear
from tetrad.worker_svc.native.program import Room
from tetrad.worker_svc.native.program_builder import ProgramBuilder
from tetrad.worker_svc.native.weights import pack_float, pack_int8


def test_memory_that_was_missing_once_is_allocated_by_the_next_step(monkeypatch):
    """Otherwise the next step would write behind the smaller buffers."""
    team = team_of(RUNNABLE[0])
    builder = ProgramBuilder(team)
    source, target = builder.buffer(64), builder.buffer(32)
    builder.linear(pack_int8(team, torch.randn(32, 64)), None, source, target)
    built = builder.build("product", NO_HEADS)
    allocate, num_failures = program.aligned_zeros, 1

    def allocate_later(size_bytes: int) -> np.ndarray:
        nonlocal num_failures
        if num_failures:
            num_failures -= 1
            raise MemoryError(size_bytes)
        return allocate(size_bytes)

    monkeypatch.setattr(program, "aligned_zeros", allocate_later)
    with pytest.raises(MemoryError):
        built._grow(100)
    built._grow(100)

    assert len(built._prepared) >= built._prepared_bytes(100)


def test_two_threads_run_the_programs_of_one_room_one_after_another(monkeypatch):
    """The threads of shared experts run the linear layers of the compute thread, which have memory in common."""
    team, room = team_of(RUNNABLE[0]), Room()
    first, second = (NativeLinear(team, room, pack_float(team, torch.randn(32, 64)), None) for _ in range(2))
    x, run, ended = torch.randn(3, 64), team.library.tetrad_run, threading.Event()
    ended_within_first = []

    def run_second() -> None:
        second(x)
        ended.set()

    def run_slowly(*arguments: object) -> int:
        monkeypatch.setattr(team.library, "tetrad_run", run)
        threading.Thread(target=run_second).start()
        ended_within_first.append(ended.wait(0.2))
        return run(*arguments)

    monkeypatch.setattr(team.library, "tetrad_run", run_slowly)
    first(x)

    assert ended_within_first == [False]
    assert ended.wait(60)
