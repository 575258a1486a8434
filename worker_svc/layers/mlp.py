"""Gated MLP: down(silu(gate(x)) * up(x)), with gate and up as one product."""

import torch
import torch.nn.functional as F  # noqa: N812

from tetrad.worker_svc.layers.linear import Linear


class GatedMlp:
    """SwiGLU.

    Args:
        gate_up: [hidden] -> [2 * intermediate], gate before up.
        down: [intermediate] -> [hidden].
    """

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        self._gate_up, self._down = gate_up, down

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, hidden]."""
        gate, up = self._gate_up(x).chunk(2, dim=-1)
        return self._down(F.silu(gate).mul_(up))
