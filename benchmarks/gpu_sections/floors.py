"""Floors: the measured best times of the GPU to move bytes and to multiply matrices; no kernel can be faster."""

from dataclasses import dataclass

import torch

from benchmarks.gpu_sections.bench import Bench


@dataclass(frozen=True)
class Floors:
    """Rates of the device.

    Attributes:
        bandwidth: of a copy within its memory, bytes read and bytes written together, per second.
        gemm: of a large bf16 product, in FLOP per second.
    """

    bandwidth: float
    gemm: float

    def bytes_s(self, num_bytes: float) -> float:
        """Return the seconds that so many bytes take at least."""
        return num_bytes / self.bandwidth

    def flops_s(self, num_flops: float) -> float:
        """Return the seconds that so many operations take at least."""
        return num_flops / self.gemm


def measure_floors(bench: Bench) -> Floors:
    """Return the rates; about a second."""
    return Floors(_bandwidth(bench), _gemm(bench))


def _bandwidth(bench: Bench) -> float:
    source = torch.zeros(bench.pick(2 << 30, 1 << 16), dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    return 2 * source.numel() / bench.seconds([lambda: target.copy_(source)])


def _gemm(bench: Bench) -> float:
    """Random values: a card draws less power, and is faster, on zeros."""
    size = bench.pick(8192, 64)
    left, right = (bench.normal(size, size, dtype=torch.bfloat16, seed=seed) for seed in (1, 2))
    out = torch.empty_like(left)
    return 2 * size**3 / bench.seconds([lambda: torch.mm(left, right, out=out)])
