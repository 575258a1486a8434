"""Causal convolutions over time, separate for each channel, and LFM2's layer: a convolution between two gates.

The last kernel - 1 inputs of a sequence are its state. Dims: D sequences, L tokens, C channels, K tokens of the kernel.
"""

from collections.abc import Sequence

import torch

from tetrad.worker_svc.model_facts.states import ShortConvolution


class CausalConvolution:
    """y[t] = bias + sum over k of weight[k] * x[t - K + 1 + k].

    Args:
        weight: [C, K].
        bias: [C]; None: no bias.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight, self._bias = weight.T.contiguous(), bias  # [K, C]
        self.num_past = len(self._weight) - 1
        self.state_size = self.num_past * weight.shape[0]

    def step(self, x: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Return the outputs [D, C] for one token [D, C] of each sequence; shift the inputs in states [D, (K - 1) * C]."""
        window = torch.cat([states.view(len(x), self.num_past, -1), x[:, None]], 1)
        states.copy_(window[:, 1:].flatten(1))
        return self._summed([window[:, place] for place in range(self.num_past + 1)])

    def scan(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Return the outputs [L, C] for the tokens [L, C] of a sequence; shift the inputs in its state [(K - 1) * C]."""
        inputs = torch.cat([state.view(self.num_past, -1), x])
        state.copy_(inputs[len(x) :].flatten())
        return self._summed([inputs[place : place + len(x)] for place in range(self.num_past + 1)])

    def shift(self, x: torch.Tensor, states: torch.Tensor) -> None:
        """Shift the inputs in states [D, (K - 1) * C] by tokens [D, L, C] of each sequence."""
        known = torch.cat([states.view(len(x), self.num_past, -1), x[:, -self.num_past :]], 1)
        states.copy_(known[:, -self.num_past :].flatten(1))

    def _summed(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the outputs [T, C] for the inputs [T, C] at each place of the kernel; the same bits in decodes and chunks."""
        found = inputs[0] * self._weight[0]
        for its, weight in zip(inputs[1:], self._weight[1:], strict=True):
            found.addcmul_(its, weight)
        return found if self._bias is None else found.add_(self._bias)


class GatedConvolution:
    """The Recurrence C * conv(B * x); see Recurrence.

    Args:
        sizes: the sizes of the layer.
        convolution: the convolution of its channels.
    """

    def __init__(self, sizes: ShortConvolution, convolution: CausalConvolution) -> None:
        self.num_outputs, self._convolution = sizes.size, convolution

    def step(self, inputs: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """See Recurrence."""
        before, _, x = inputs.chunk(3, 1)
        return self._convolution.step(before * x, states)

    def scan(self, inputs: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """See Recurrence."""
        before, _, x = inputs.chunk(3, 1)
        return self._convolution.scan(before * x, state)

    def gated(self, outputs: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """See Recurrence."""
        return outputs.mul_(inputs.chunk(3, 1)[1])
