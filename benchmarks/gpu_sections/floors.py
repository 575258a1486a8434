"""Floors: the highest measured rates of the GPU at moving bytes and multiplying matrices; no kernel can be faster."""

from dataclasses import dataclass

import torch

from benchmarks.gpu_sections.bench import Bench


@dataclass(frozen=True)
class Floors:
    """The rates of the device.

    Attributes:
        bandwidth: bytes per second of a copy within the device's memory; bytes read and bytes written are both counted.
        gemm: FLOP per second of a large bf16 product.
    """

    bandwidth: float
    gemm: float

    def bytes_s(self, num_bytes: float) -> float:
        """Return the shortest time, in seconds, for moving so many bytes."""
        return num_bytes / self.bandwidth

    def flops_s(self, num_flops: float) -> float:
        """Return the shortest time, in seconds, for so many floating-point operations."""
        return num_flops / self.gemm


def measure_floors(bench: Bench) -> Floors:
    """Measure and return the rates; takes about a second."""
    return Floors(_bandwidth(bench), _gemm(bench))


def _bandwidth(bench: Bench) -> float:
    source = torch.zeros(bench.pick(2 << 30, 1 << 16), dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    return 2 * source.numel() / bench.seconds([lambda: target.copy_(source)])


def _gemm(bench: Bench) -> float:
    """Return the rate of a large product of random values; with zeros, a card would draw less power and be faster."""
    size = bench.pick(8192, 64)
    left, right = (bench.normal(size, size, dtype=torch.bfloat16, seed=seed) for seed in (1, 2))
    out = torch.empty_like(left)
    return 2 * size**3 / bench.seconds([lambda: torch.mm(left, right, out=out)])
