"""A program whose buffers could not grow does not take them for larger ones in the next step."""

import numpy as np
import pytest
import torch

from tests.worker_svc.native.native_programs import NO_HEADS, RUNNABLE, team_of
from tetrad.worker_svc.native import program
from tetrad.worker_svc.native.program_builder import ProgramBuilder
from tetrad.worker_svc.native.weights import pack_int8


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
