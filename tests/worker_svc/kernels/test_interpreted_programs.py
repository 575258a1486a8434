"""The programs of a kernel that run together write the bits that they write one after the other."""

from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from tests.worker_svc import interpreted_programs
from tetrad.worker_svc.kernels.activation import gelu_mul, silu_mul
from tetrad.worker_svc.kernels.argmax import argmax
from tetrad.worker_svc.kernels.draw import block_masses, draw
from tetrad.worker_svc.kernels.logprobs import gather_logprobs
from tetrad.worker_svc.kernels.rms_norm import add_rms_norm, rms_norm
from tetrad.worker_svc.kernels.rotate_and_cache import rotate_and_cache
from tetrad.worker_svc.kernels.scaled_stream import scale_stream

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a card compiles kernels")

ROWS, MOST = 40, 16
"""More than run together in these tests."""
EACH = dict.fromkeys(interpreted_programs.TOGETHER, MOST)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def rotated(dtype: torch.dtype, *, has_norms: bool) -> list[torch.Tensor]:
    """Two query heads and one of keys and values, of which each third token is padding."""
    qkv, cache = normal(ROWS, 4 * 24, dtype=dtype), torch.zeros(20, 16, 2, 1, 24, dtype=dtype)
    slots = torch.arange(ROWS).where(torch.arange(ROWS) % 3 > 0, torch.tensor(-1))
    norms = (normal(24), normal(24) + 1) if has_norms else None
    rotate_and_cache(qkv, normal(ROWS, 16), slots, cache, 2, 0.5, 0.25, norms, 1e-5)
    return [qkv, cache]


def added(dtype: torch.dtype) -> list[torch.Tensor]:
    residual = normal(ROWS, 50)
    return [add_rms_norm(normal(ROWS, 50, dtype=dtype), residual, normal(50), 1e-5), residual]


def drawn() -> list[torch.Tensor]:
    """Greedy rows among others, and one whose logits are not numbers."""
    logits, slots, positions = normal(ROWS, 700), torch.arange(ROWS) % 5, torch.arange(ROWS)
    logits[7] = torch.nan
    temperature, seeds = torch.tensor([0.0, 1.0, 0.5, 2.0, 0.1], dtype=torch.float64), torch.arange(5) << 40
    peaks, masses = block_masses(logits, slots, temperature)
    return [draw(logits, peaks, masses, torch.full((ROWS,), 0.01), slots, positions, temperature, seeds)]


CASES: dict[str, Callable[[], object]] = {
    "rotation": lambda: rotated(torch.float32, has_norms=False),
    "rotation with norms in bfloat16": lambda: rotated(torch.bfloat16, has_norms=True),
    "norm": lambda: [rms_norm(normal(ROWS, 50, dtype=torch.float16), normal(50), 1e-5)],
    "sum and norm": lambda: added(torch.bfloat16),
    "silu": lambda: [silu_mul(normal(ROWS, 90))],
    "gelu": lambda: [gelu_mul(normal(ROWS, 90, dtype=torch.bfloat16))],
    "scaled stream": lambda: list(scale_stream(normal(ROWS, 50), normal(50))),
    "argmax": lambda: [argmax(normal(ROWS, 700))],
    "draw": drawn,
    "logprobs": lambda: [*gather_logprobs(normal(ROWS, 700), (torch.arange(ROWS * 3).view(ROWS, 3) % 700).int())],
}


def bits(results: list[torch.Tensor]) -> list[list[int]]:
    return [each.contiguous().view(torch.uint8).flatten().tolist() for each in results]


@pytest.mark.parametrize("case", CASES)
def test_programs_that_run_together_write_the_bits_of_programs_that_run_alone(case, monkeypatch):
    monkeypatch.setattr(interpreted_programs, "TOGETHER", EACH)
    together = CASES[case]()
    monkeypatch.setattr(interpreted_programs, "TOGETHER", {})

    assert bits(together) == bits(CASES[case]())


@triton.jit
def diverging_kernel(out):
    tl.store(out + tl.program_id(0), 1)
    if tl.program_id(0) > 0:
        tl.store(out + tl.program_id(0), 2)


def test_programs_that_diverge_after_a_store_are_refused(monkeypatch):
    monkeypatch.setattr(interpreted_programs, "TOGETHER", {"diverging_kernel": 2})

    with pytest.raises(InterpreterError, match="diverge after a store"):
        diverging_kernel[(2,)](torch.zeros(2))
