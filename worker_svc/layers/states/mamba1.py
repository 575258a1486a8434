"""Mamba (Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 2023).

Each channel has a state s [N] that decays by its time step d, which depends on the token, as B and C do:

    s = exp(d A) s + d x B        y = s C + D x

Time steps, B and C are products of the convolution's outputs. They are computed for all tokens of a step at once, and before
any state changes, so adapters apply to them, and accepted drafts need no further product. Tokens change a state one after
another, with the same operations in decodes and chunks: a state does not depend on how a sequence's tokens are divided among
steps.
Dims: T tokens, D sequences, L tokens of a chunk, C channels, N values of a channel's state.
"""

from typing import NamedTuple

import torch

from tetrad.worker_svc.kv_cache.state_rows import StateRows
from tetrad.worker_svc.layers.linear import Linear
from tetrad.worker_svc.layers.norm import Norm
from tetrad.worker_svc.layers.states.convolution import CausalConvolution
from tetrad.worker_svc.layers.states.mamba2 import chunks_of
from tetrad.worker_svc.model_facts.states import Mamba1


class SelectionNorms(NamedTuple):
    """The norms of time steps, before their product, and of B and C."""

    steps: Norm
    into: Norm
    out_of: Norm


class SelectiveInputs:
    """The StateInputs of Mamba, [T, C x before the convolution, C gates, C x after it, C time steps, N of B, N of C].

    Args:
        sizes: the sizes of the layer.
        projection: [hidden] -> [2 C], x and gates.
        convolution: the convolution of x.
        selection: [C] -> [rank + 2 N], a time step's factors, B and C.
        steps: [rank] -> [C], time steps.
        step_bias: [C], added to time steps.
        norms: the norms between the last two products.
    """

    def __init__(
        self,
        sizes: Mamba1,
        projection: Linear,
        convolution: CausalConvolution,
        *,
        selection: Linear,
        steps: Linear,
        step_bias: torch.Tensor,
        norms: SelectionNorms,
    ) -> None:
        self._sizes, self._projection, self._convolution = sizes, projection, convolution
        self._selection, self._steps, self._step_bias, self._norms = selection, steps, step_bias, norms

    def __call__(self, x: torch.Tensor, cache: torch.Tensor, rows: StateRows) -> torch.Tensor:
        """See StateInputs."""
        sizes = self._sizes
        projected = self._projection(x).float()
        mixed = _silu(self._convolved(projected[:, : sizes.size], cache, rows))
        selected = self._selection(mixed.to(x.dtype)).float()
        steps, into, out_of = torch.split(selected, [sizes.step_rank, sizes.state_dim, sizes.state_dim], 1)
        steps = self._steps(self._norms.steps(steps).to(x.dtype)).float()
        steps = _softplus(steps + self._step_bias)
        return torch.cat([projected, mixed, steps, self._norms.into(into), self._norms.out_of(out_of)], 1)

    def _convolved(self, x: torch.Tensor, cache: torch.Tensor, rows: StateRows) -> torch.Tensor:
        """Return the convolution's outputs [T, C]; the states are not changed."""
        found, num_past, num_decodes = torch.empty_like(x), self._convolution.state_size, len(rows.sources)
        if num_decodes:
            past = cache[:, :num_past].index_select(0, rows.sources)
            past.index_fill_(0, rows.begun, 0.0)
            found[:num_decodes] = self._convolution.step(x[:num_decodes], past)
        for chunk in rows.chunks:
            its = cache.new_zeros(num_past) if chunk.source is None else cache[chunk.source, :num_past].clone()
            found[chunk.tokens] = self._convolution.scan(x[chunk.tokens], its)
        return found


class Mamba1Recurrence:
    """The Recurrence of Mamba on SelectiveInputs; see Recurrence.

    Args:
        sizes: the sizes of the layer.
        convolution: the convolution of x, whose last inputs are a part of the state.
        decay: [N, C], A; below 0.
        skip: [C], D.
    """

    def __init__(self, sizes: Mamba1, convolution: CausalConvolution, *, decay: torch.Tensor, skip: torch.Tensor) -> None:
        self.num_outputs, self._sizes, self._convolution = sizes.size, sizes, convolution
        self._decay, self._skip = decay, skip
        self._input_sizes = [sizes.size] * 4 + [sizes.state_dim] * 2

    def step(self, inputs: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """See Recurrence."""
        num_past = self._convolution.state_size
        self._convolution.shift(inputs[:, None, : self.num_outputs], states[:, :num_past])
        # A few sequences at once: their terms have the size of their states.
        return torch.cat([self._token(inputs[at], states[at, num_past:]) for at in chunks_of(len(inputs))])

    def scan(self, inputs: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """See Recurrence."""
        num_past = self._convolution.state_size
        self._convolution.shift(inputs[None, :, : self.num_outputs], state[None, :num_past])
        return torch.cat([self._chunk(inputs[at], state[num_past:]) for at in chunks_of(len(inputs))])

    def gated(self, outputs: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """See Recurrence."""
        return outputs.mul_(_silu(inputs[:, self.num_outputs : 2 * self.num_outputs]))

    def _token(self, inputs: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Return the outputs [D, C] for inputs [D, P] of one token of each sequence; change the states [D, N * C]."""
        decays, added, out_of, skipped = self._terms(inputs)
        state = states.view_as(added)
        torch.addcmul(added, decays, state, out=state)
        return (state * out_of).sum(1).add_(skipped)

    def _chunk(self, inputs: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Return the outputs [L, C] for inputs [L, P] of a sequence's tokens in order; change the state [N * C]."""
        decays, states, out_of, skipped = self._terms(inputs)
        before = state.view_as(states[0])
        for token, added in enumerate(states):  # what a token adds is replaced by the state behind it
            before = torch.addcmul(added, decays[token], before, out=added)
        state.copy_(before.flatten())
        return states.mul_(out_of).sum(1).add_(skipped)

    def _terms(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return decays and d x B [T, N, C], C [T, N, 1] and D x [T, C] for inputs [T, P]."""
        _, _, x, steps, into, out_of = torch.split(inputs, self._input_sizes, 1)
        decays = (steps[:, None] * self._decay).exp_()
        return decays, (steps * x)[:, None] * into[..., None], out_of[..., None], self._skip * x


# On the host, torch's own kernels of these two give the last values of a tensor other bits than the rest, so that a row's bits
# depend on the number of rows. The kernels of exp and log1p do not.
def _silu(x: torch.Tensor) -> torch.Tensor:
    return x / x.neg().exp_().add_(1.0)


def _softplus(x: torch.Tensor) -> torch.Tensor:
    return x.abs().neg_().exp_().log1p_().add_(x.clamp_min(0.0))
