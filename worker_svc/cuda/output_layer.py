"""Output layer: hidden states of any dtype to logits in float32.

Between 16 and 32 two neighbours of bfloat16 are 0.125 apart: a logit that is rounded to them is off by more than the rest of
the model is. The product sums in float32 anyway; what is written is twice as wide.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from tetrad.worker_svc.layers.linear import Linear, PlainLinear


def output_layer(linear: Linear) -> Linear:
    """Return the layer with logits [N, V] float32; those of one with quantized weights are as exact as its own type."""
    return FloatLogits(linear.weight) if isinstance(linear, PlainLinear) else _Widened(linear)


class FloatLogits:
    """A Linear whose results are float32.

    Args:
        weight: [V, hidden].
    """

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [N, V]."""
        if x.is_cuda and x.dtype != torch.float32:
            return torch.mm(x, self._weight.t(), out_dtype=torch.float32)
        return F.linear(x.float(), self._weight.float())  # on the host, where there is no such product


class _Widened:
    def __init__(self, linear: Linear) -> None:
        self._linear = linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._linear(x).float()
