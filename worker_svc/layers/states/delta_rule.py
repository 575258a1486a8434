"""Gated delta rule (Yang et al., "Gated Delta Networks", 2024). Each head has a state S [K, V]; k and q have length 1:

    S = exp(g) S;    S = S + k (b (v - S^T k))^T        o = S^T q / sqrt(K)

Many tokens are computed in chunks (section 3.3 of the paper): the corrections between the values of a chunk's tokens are one
triangular system. Dims: D sequences, L tokens, H value heads, K dimensions of keys, V of values.
"""

import torch
import torch.nn.functional as F  # noqa: N812

from tetrad.worker_svc.layers.norm import Norm
from tetrad.worker_svc.layers.states.convolution import CausalConvolution
from tetrad.worker_svc.layers.states.mamba2 import chunks_of, decays_between
from tetrad.worker_svc.model_facts.states import GatedDeltaRule

_LENGTH_EPS = 1e-6
"""Value added to the squared length of keys and queries before they are divided by it, as in the model's training."""


class DeltaRecurrence:
    """The Recurrence of gated delta nets; see Recurrence.

    Args:
        sizes: the sizes of the layer.
        convolution: the convolution of queries, keys and values.
        decay_bias: [H], added to the inputs of decays.
        decay: [H], below 0.
        norm: the norm of the outputs of a head, [..., V].
    """

    def __init__(
        self,
        sizes: GatedDeltaRule,
        convolution: CausalConvolution,
        *,
        decay_bias: torch.Tensor,
        decay: torch.Tensor,
        norm: Norm,
    ) -> None:
        self.num_outputs, self._sizes, self._convolution = sizes.size, sizes, convolution
        self._decay_bias, self._decay, self._norm = decay_bias, decay, norm
        self._input_sizes = [sizes.conv_size, sizes.size, sizes.num_value_heads, sizes.num_value_heads]

    def step(self, inputs: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """See Recurrence."""
        sizes, num_past = self._sizes, self._convolution.state_size
        mixed, _, betas, decays = torch.split(inputs, self._input_sizes, 1)
        query, key, value = self._parts(self._convolution.step(mixed, states[:, :num_past]))
        state = states[:, num_past:].view(-1, sizes.num_value_heads, sizes.key_dim, sizes.value_dim)
        decays, betas = self._decays(decays).exp_()[..., None, None], betas.sigmoid()[..., None, None]
        query, key, value = query[:, :, None], key[:, :, None], value[:, :, None]
        found = torch.empty_like(value)
        for row, its_state in enumerate(state):  # one state fits into a processor's cache, all states do not
            known = torch.bmm(key[row], its_state.mul_(decays[row]))
            its_state.baddbmm_(key[row].transpose(1, 2), (value[row] - known).mul_(betas[row]))
            torch.bmm(query[row], its_state, out=found[row])
        return found.flatten(1)

    def scan(self, inputs: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """See Recurrence."""
        sizes, num_past = self._sizes, self._convolution.state_size
        mixed, _, betas, decays = torch.split(inputs, self._input_sizes, 1)
        query, key, value = (each.transpose(0, 1) for each in self._parts(self._convolution.scan(mixed, state[:num_past])))
        beta, decay = betas.sigmoid().T, self._decays(decays).T
        matrix = state[num_past:].view(sizes.num_value_heads, sizes.key_dim, sizes.value_dim)
        return torch.cat(
            [_chunk(query[:, at], key[:, at], value[:, at], beta[:, at], decay[:, at], matrix) for at in chunks_of(len(inputs))]
        ).flatten(1)

    def gated(self, outputs: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """See Recurrence."""
        sizes = self._sizes
        gate = inputs[:, sizes.conv_size : sizes.conv_size + sizes.size]
        return self._norm(outputs.view(len(outputs), -1, sizes.value_dim)).flatten(1).mul_(F.silu(gate))

    def _parts(self, mixed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return queries and keys [T, H, K] and values [T, H, V] from the convolution's outputs."""
        sizes, keys = self._sizes, self._sizes.num_key_heads * self._sizes.key_dim
        query, key, value = torch.split(F.silu(mixed), [keys, keys, sizes.size], 1)
        query, key = (self._of_heads(each.view(len(mixed), sizes.num_key_heads, -1)) for each in (query, key))
        return query.mul_(sizes.key_dim**-0.5), key, value.view(len(mixed), sizes.num_value_heads, -1)

    def _of_heads(self, shared: torch.Tensor) -> torch.Tensor:
        """Return vectors [T, H, K] of length 1 for key heads; several value heads share a key head."""
        unit = shared * torch.rsqrt(shared.square().sum(-1, keepdim=True).add_(_LENGTH_EPS))
        count = self._sizes.num_value_heads // self._sizes.num_key_heads
        return unit.repeat(1, count, 1) if self._sizes.are_keys_in_turns else unit.repeat_interleave(count, 1)

    def _decays(self, decays: torch.Tensor) -> torch.Tensor:
        return F.softplus(decays + self._decay_bias).mul_(self._decay)


def _chunk(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, beta: torch.Tensor, decay: torch.Tensor, state: torch.Tensor
) -> torch.Tensor:
    """Return the outputs [L, H, V] for queries and keys [H, L, K], values [H, L, V], betas and logarithms of decays [H, L].

    The state [H, K, V] is changed in place.
    """
    decay = decay.cumsum(1)
    between = decays_between(decay)
    weighted = key * beta[..., None]
    # The correction of token i's value depends on the corrected values of the tokens before it: a unit triangular system.
    system = (weighted @ key.transpose(1, 2)).mul_(between)
    wanted = value * beta[..., None] - (weighted * decay.exp()[..., None]) @ state
    written = torch.linalg.solve_triangular(system.tril_(-1), wanted, upper=False, unitriangular=True)
    found = (query * decay.exp()[..., None]) @ state
    found.add_((query @ key.transpose(1, 2)).mul_(between) @ written)
    remaining = (decay[:, -1:] - decay).exp_()
    state.mul_(decay[:, -1].exp()[:, None, None]).add_((key * remaining[..., None]).transpose(1, 2) @ written)
    return found.transpose(0, 1)
