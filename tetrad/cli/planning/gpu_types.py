"""GPU types: the figures from NVIDIA's data sheets that a plan is computed from.

Bandwidths are those of one direction. `memory_gib` is the memory of a card that a process can use. The latencies of an exchange
are assumptions, not data-sheet values: 8 us over NVLink and 20 us over PCIe.
"""

from collections.abc import Mapping
from dataclasses import dataclass

_NVLINK_LATENCY_US, _PCIE_LATENCY_US = 8.0, 20.0


@dataclass(frozen=True, slots=True)
class GpuType:
    """A type of card, and the connection between cards.

    Attributes:
        name: name on the command line.
        memory_gib: usable memory of a card, in GiB.
        memory_gb_s: bandwidth of its memory, in 1e9 bytes per second.
        tflops: dense products in bfloat16, in 1e12 per second.
        link_gb_s: bandwidth from a card to another one, in 1e9 bytes per second.
        link_latency_us: latency of one collective or one message between stages, in microseconds.
    """

    name: str
    memory_gib: float
    memory_gb_s: float
    tflops: float
    link_gb_s: float
    link_latency_us: float

    @property
    def memory_bytes(self) -> float:
        """The usable memory of a card in bytes."""
        return self.memory_gib * (1 << 30)

    def compute_seconds(self, num_bytes: float, flops: float) -> float:
        """Return the seconds of work that reads `num_bytes` and computes `flops`: the longer of the two times."""
        return max(num_bytes / (self.memory_gb_s * 1e9), flops / (self.tflops * 1e12))

    def all_reduce_seconds(self, num_bytes: float, num_ranks: int) -> float:
        """Return the seconds of one sum of `num_bytes` over ranks; a ring sends 2 (n - 1) / n of these bytes."""
        if num_ranks == 1:
            return 0.0
        return self.link_latency_us * 1e-6 + 2 * (num_ranks - 1) / num_ranks * num_bytes / (self.link_gb_s * 1e9)

    def send_seconds(self, num_bytes: float) -> float:
        """Return the seconds of one message to another card."""
        return self.link_latency_us * 1e-6 + num_bytes / (self.link_gb_s * 1e9)


GPU_TYPES: Mapping[str, GpuType] = {
    each.name: each
    for each in (
        GpuType("A10", 22.0, 600, 125, 31.5, _PCIE_LATENCY_US),
        GpuType("A100-40GB", 39.4, 1555, 312, 300, _NVLINK_LATENCY_US),
        GpuType("A100-80GB", 79.1, 2039, 312, 300, _NVLINK_LATENCY_US),
        GpuType("B200", 178.4, 8000, 2250, 900, _NVLINK_LATENCY_US),
        GpuType("H100", 79.1, 3350, 989, 450, _NVLINK_LATENCY_US),
        GpuType("H100-PCIe", 79.1, 2000, 756, 63, _PCIE_LATENCY_US),
        GpuType("H200", 139.8, 4800, 989, 450, _NVLINK_LATENCY_US),
        GpuType("L4", 22.0, 300, 121, 31.5, _PCIE_LATENCY_US),
        GpuType("L40S", 44.4, 864, 362, 31.5, _PCIE_LATENCY_US),
    )
}
"""The known types by name."""
