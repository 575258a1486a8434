"""GPU types: the figures of NVIDIA's data sheets from which a plan is computed.

Bandwidths are of one direction. `memory_gib` is the memory of a card that a process can use. The latencies of an exchange are
assumptions, not data-sheet values: 8 us over NVLink and 20 us over PCIe.
"""

from collections.abc import Mapping
from dataclasses import dataclass

_NVLINK_LATENCY_US, _PCIE_LATENCY_US = 8.0, 20.0


@dataclass(frozen=True, slots=True)
class GpuType:
    """A kind of card, and how cards are connected.

    Attributes:
        name: as the command line has it.
        memory_gib: of a card.
        memory_gb_s: bandwidth of its memory, 1e9 bytes a second.
        tflops: dense products in bfloat16, 1e12 a second.
        link_gb_s: what a card sends to another one, 1e9 bytes a second.
        link_latency_us: of one collective or one message between stages.
    """

    name: str
    memory_gib: float
    memory_gb_s: float
    tflops: float
    link_gb_s: float
    link_latency_us: float

    @property
    def memory_bytes(self) -> float:
        """Bytes of a card."""
        return self.memory_gib * (1 << 30)

    def compute_seconds(self, num_bytes: float, flops: float) -> float:
        """Return the time of work that reads `num_bytes` and computes `flops`: the slower of the two decides."""
        return max(num_bytes / (self.memory_gb_s * 1e9), flops / (self.tflops * 1e12))

    def all_reduce_seconds(self, num_bytes: float, num_ranks: int) -> float:
        """Return the time of one sum of `num_bytes` over ranks; a ring sends 2 (n - 1) / n of them."""
        if num_ranks == 1:
            return 0.0
        return self.link_latency_us * 1e-6 + 2 * (num_ranks - 1) / num_ranks * num_bytes / (self.link_gb_s * 1e9)

    def send_seconds(self, num_bytes: float) -> float:
        """Return the time of one message to another card."""
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
"""By name."""
