"""Multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1): one short vector for the keys of all heads.

For each token, the cache has a latent [rank], from which products give every head's key and value, and one rotated key
[rotary_dim]. The matrix that expands the latent to keys is applied to queries instead, and the one for values to the result:

    q k^T = (q_plain W_k) latent^T + q_turned k_turned^T        softmax(q k^T) v = (softmax(q k^T) latent) W_v^T

so attention has one head of keys. Dims: T tokens, H heads.
"""

from collections.abc import Callable
from typing import Generic

import torch

from tetrad.worker_svc.attention.interface import LayerAttention, M
from tetrad.worker_svc.layers.linear import Linear
from tetrad.worker_svc.layers.norm import Norm
from tetrad.worker_svc.layers.rotary import rotate_
from tetrad.worker_svc.layers.step import Step
from tetrad.worker_svc.model_facts.config import Latent

LATENT_NORM_EPS = 1e-6
"""Epsilon of DeepSeek's norms of latents, which differs from the model's."""

Queries = Callable[[torch.Tensor], torch.Tensor]
"""Function that expands the low-rank product of x to queries [T, H * (plain_dim + rotary_dim)]."""


class NormedLinear:
    """A norm and a product, which expand the latent of queries to queries.

    Args:
        norm: the norm of the latent.
        linear: [query_rank] -> [H * (plain_dim + rotary_dim)].
    """

    def __init__(self, norm: Norm, linear: Linear) -> None:
        self._norm, self._linear = norm, linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return queries [T, H * (plain_dim + rotary_dim)] for latents x [T, query_rank]."""
        return self._linear(self._norm(x))


class LatentAttention(Generic[M]):
    """One layer's attention; see Attention.

    Args:
        latent: the sizes.
        inputs: [hidden] -> the input of `queries`, then the latent, then the rotated key; rotated pairs are interleaved.
        queries: see above.
        norm: the norm of the latent.
        expand: [H, plain_dim + value_dim, rank], matrices that expand the latent to each head's key and value.
        output: [H * value_dim] -> [hidden].
        attention: the paged attention of this layer, with one head of rank + rotary_dim dimensions.
        rope: index of the rotary embedding among those of the model.
    """

    def __init__(
        self,
        latent: Latent,
        *,
        inputs: Linear,
        queries: Queries,
        norm: Norm,
        expand: torch.Tensor,
        output: Linear,
        attention: LayerAttention[M],
        rope: int,
    ) -> None:
        self._latent, self._inputs, self._queries, self._norm = latent, inputs, queries, norm
        self._to_keys, self._to_values = expand[:, : latent.plain_dim], expand[:, latent.plain_dim :]
        self._output, self._attention, self._rope = output, attention, rope

    def __call__(self, x: torch.Tensor, cache: torch.Tensor, step: Step, metadata: M) -> torch.Tensor:
        """See Attention."""
        latent, turns = self._latent, step.turns[self._rope]
        found = self._inputs(x)
        end = found.shape[1] - latent.rotary_dim
        of_query, compressed, key = found[:, : end - latent.rank], found[:, end - latent.rank : end], found[:, end:]
        heads = self._queries(of_query).view(len(x), len(self._to_keys), -1)
        # Copies, because a row of one token is contiguous as it is, and pairs cannot begin at an odd place of its memory.
        turned = heads[..., latent.plain_dim :].clone(memory_format=torch.contiguous_format)
        key = key.unsqueeze(1).clone(memory_format=torch.contiguous_format)
        rotate_(turned, turns)
        rotate_(key, turns)
        shared = torch.cat([self._norm(compressed), key.squeeze(1)], 1)
        query = torch.cat([torch.einsum("thp,hpr->thr", heads[..., : latent.plain_dim], self._to_keys), turned], 2)
        # Values are only the latent; in the cache, a value takes as much room as a key.
        attended = self._attention.attend(query.flatten(1), torch.cat([shared, shared], 1), cache, metadata)
        values = attended.view(query.shape)[..., : latent.rank]
        return self._output(torch.einsum("thr,hvr->thv", values, self._to_values).flatten(1))
