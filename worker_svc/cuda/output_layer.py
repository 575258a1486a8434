"""Output layer: computes float32 logits from hidden states of any dtype.

Between 16 and 32, neighbouring bfloat16 numbers differ by 0.125: rounding logits to bfloat16 would cause a larger error than
the rest of the model. The product sums in float32 in any case; only the stored result is twice as wide.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from tetrad.worker_svc.layers.linear import Linear, PlainLinear


def output_layer(linear: Linear) -> Linear:
    """Return the layer with logits [N, V] float32; with quantized weights, they are only as exact as the layer's own type."""
    return FloatLogits(linear.weight, linear.bias) if isinstance(linear, PlainLinear) else _Widened(linear)


class FloatLogits:
    """A Linear whose results are float32.

    Args:
        weight: [V, hidden].
        bias: [V]; None: no bias.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits [N, V] float32 of hidden states x [N, hidden]."""
        if x.is_cuda and x.dtype != torch.float32:
            logits = torch.mm(x, self._weight.t(), out_dtype=torch.float32)
            return logits if self._bias is None else logits.add_(self._bias)
        bias = None if self._bias is None else self._bias.float()
        return F.linear(x.float(), self._weight.float(), bias)  # on the host, which has no product with `out_dtype`


class _Widened:
    def __init__(self, linear: Linear) -> None:
        self._linear = linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._linear(x).float()
