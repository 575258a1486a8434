"""Mamba2 (Dao and Gu, "Transformers are SSMs", 2024). Each head has a state S [P, N] that decays by its time step d:

    S = exp(d A) S + d x B^T        y = S C + D x

Many tokens are computed in chunks, as in section 6 of the paper: products of tokens with each other within a chunk, and the
state between chunks. Dims: D sequences, L tokens, H heads, P dimensions of a head, G groups, N values of the state.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F  # noqa: N812

from tetrad.worker_svc.layers.norm import Norm
from tetrad.worker_svc.layers.states.convolution import CausalConvolution
from tetrad.worker_svc.model_facts.states import Mamba2

_CHUNK = 32
"""Number of tokens in a chunk, whose products with each other are computed at once."""


def chunks_of(num_tokens: int) -> Iterator[slice]:
    """Return the slices of tokens in chunks."""
    return (slice(start, start + _CHUNK) for start in range(0, num_tokens, _CHUNK))


class Mamba2Recurrence:
    """The Recurrence of Mamba2; see Recurrence.

    Args:
        sizes: the sizes of the layer.
        convolution: the convolution of x, B and C.
        step_bias: [H], added to time steps.
        decay: [H], A; below 0.
        skip: [H], D.
        norm: the norm of the outputs [..., norm group's size], before or after the product with the gate.
    """

    def __init__(
        self,
        sizes: Mamba2,
        convolution: CausalConvolution,
        *,
        step_bias: torch.Tensor,
        decay: torch.Tensor,
        skip: torch.Tensor,
        norm: Norm,
    ) -> None:
        self.num_outputs, self._sizes, self._convolution = sizes.size, sizes, convolution
        self._step_bias, self._decay, self._skip, self._norm = step_bias, decay, skip[:, None], norm
        self._input_sizes = [sizes.size, sizes.conv_size, sizes.num_heads]

    def step(self, inputs: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """See Recurrence."""
        sizes, num_past = self._sizes, self._convolution.state_size
        _, mixed, steps = torch.split(inputs, self._input_sizes, 1)
        x, into, out_of = self._parts(self._convolution.step(mixed, states[:, :num_past]))
        steps = self._steps(steps)
        state = states[:, num_past:].view(-1, sizes.num_heads, sizes.head_dim, sizes.state_dim)
        decays, added = (steps * self._decay).exp_()[..., None, None], (x * steps[:, :, None])[..., None]
        into, out_of = self._of_heads(into)[:, :, None], self._of_heads(out_of)[..., None]
        found = torch.empty_like(x)
        for row, its_state in enumerate(state):  # one state fits into a processor's cache, all states do not
            its_state.mul_(decays[row]).baddbmm_(added[row], into[row])
            torch.bmm(its_state, out_of[row], out=found[row][..., None])
        return found.add_(self._skip * x).flatten(1)

    def scan(self, inputs: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """See Recurrence."""
        sizes, num_past = self._sizes, self._convolution.state_size
        _, mixed, steps = torch.split(inputs, self._input_sizes, 1)
        x, into, out_of = self._parts(self._convolution.scan(mixed, state[:num_past]))
        steps = self._steps(steps)
        matrix = state[num_past:].view(sizes.num_heads, sizes.head_dim, sizes.state_dim)
        found = torch.cat([self._chunk(x[at], into[at], out_of[at], steps[at], matrix) for at in chunks_of(len(x))])
        return found.add_(self._skip * x).flatten(1)

    def gated(self, outputs: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """See Recurrence."""
        gate, kind = F.silu(inputs[:, : self.num_outputs]), self._sizes.gated_norm
        if kind == "none":
            return outputs.mul_(gate)
        outputs = outputs.mul_(gate) if kind == "after_gate" else outputs
        normed = self._norm(outputs.view(len(outputs), self._sizes.num_groups, -1)).flatten(1)
        return normed if kind == "after_gate" else normed.mul_(gate)

    def _chunk(
        self, x: torch.Tensor, into: torch.Tensor, out_of: torch.Tensor, steps: torch.Tensor, state: torch.Tensor
    ) -> torch.Tensor:
        """Return the outputs [L, H, P] for x [L, H, P], B and C [L, G, N], time steps [L, H]; change the state [H, P, N]."""
        decays = (steps * self._decay).cumsum(0).T  # [H, L], logarithms of the decay since the chunk's beginning
        added = (x * steps[..., None]).transpose(0, 1)  # [H, L, P]
        into, out_of = (self._of_heads(each).transpose(0, 1) for each in (into, out_of))  # [H, L, N]
        products = (out_of @ into.transpose(1, 2)).mul_(decays_between(decays))
        found = products @ added
        found.add_((out_of @ state.transpose(1, 2)).mul_(decays.exp()[..., None]))
        remaining = (decays[:, -1:] - decays).exp_()
        state.mul_(decays[:, -1].exp()[:, None, None]).add_((added * remaining[..., None]).transpose(1, 2) @ into)
        return found.transpose(0, 1)

    def _parts(self, mixed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return x [T, H, P], and B and C [T, G, N], from the convolution's outputs."""
        sizes, shared = self._sizes, self._sizes.num_groups * self._sizes.state_dim
        x, into, out_of = torch.split(F.silu(mixed), [sizes.size, shared, shared], 1)
        groups = (len(mixed), sizes.num_groups, sizes.state_dim)
        return x.view(len(mixed), sizes.num_heads, sizes.head_dim), into.view(groups), out_of.view(groups)

    def _steps(self, steps: torch.Tensor) -> torch.Tensor:
        return F.softplus(steps + self._step_bias).clamp_(self._sizes.min_step, self._sizes.max_step)

    def _of_heads(self, shared: torch.Tensor) -> torch.Tensor:
        """Return [T, H, N] for `shared` [T, G, N], which the heads of a group share."""
        return shared.repeat_interleave(self._sizes.num_heads // self._sizes.num_groups, 1)


def decays_between(decays: torch.Tensor) -> torch.Tensor:
    """Return [H, L, L]: the decay of token j's addition at token i; 0 if token j is after token i.

    Args:
        decays: [H, L], logarithms of the decay since a common beginning, token i's own decay included.
    """
    later = torch.ones(decays.shape[1], decays.shape[1], dtype=torch.bool, device=decays.device).triu_(1)
    return (decays[:, :, None] - decays[:, None]).masked_fill_(later, float("-inf")).exp_()
