"""Self-attention layer: one product for qkv, changes of queries and keys (norms, rotation), paged attention, output product."""

from collections.abc import Sequence
from typing import Generic, Protocol

import torch

from tetrad.worker_svc.attention.interface import LayerAttention, M, M_contra
from tetrad.worker_svc.layers.linear import Linear
from tetrad.worker_svc.layers.norm import Norm
from tetrad.worker_svc.layers.rotary import rotate_
from tetrad.worker_svc.layers.step import Step
from tetrad.worker_svc.model_facts.config import QueryScaling


class Attention(Protocol[M_contra]):
    """The attention of a layer, which combines tokens."""

    def __call__(self, x: torch.Tensor, cache: torch.Tensor, step: Step, metadata: M_contra) -> torch.Tensor:
        """Return the output [T, hidden] for x [T, hidden]; write the layer's cache."""


class HeadChange(Protocol):
    """A change of queries and keys before attention."""

    def __call__(self, heads: torch.Tensor, step: Step) -> None:
        """Change heads [T, H + K, D], queries before keys, in place."""


class SelfAttention(Generic[M]):
    """One layer's attention.

    Args:
        qkv: [hidden] -> [(num_heads + 2 * num_kv_heads) * head_dim], rows of q and k interleaved (rotary.py).
        output: [num_heads * head_dim] -> [hidden].
        attention: the paged attention of this layer.
        num_heads, num_kv_heads, head_dim: the heads of the model.
        changes: the changes of queries and keys, in order.
        gate: [hidden] -> [num_heads * head_dim]; its sigmoid multiplies the output of attention; None: no gate.
    """

    def __init__(
        self,
        qkv: Linear,
        output: Linear,
        attention: LayerAttention[M],
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        changes: Sequence[HeadChange],
        gate: Linear | None = None,
    ) -> None:
        self._qkv, self._output, self._attention, self._changes = qkv, output, attention, tuple(changes)
        self._head_dim, self._gate = head_dim, gate
        self._query_size = num_heads * head_dim
        self._changed_size = (num_heads + num_kv_heads) * head_dim

    def __call__(self, x: torch.Tensor, cache: torch.Tensor, step: Step, metadata: M) -> torch.Tensor:
        """See Attention."""
        qkv = self._qkv(x)
        heads = qkv[:, : self._changed_size].view(len(x), -1, self._head_dim)
        for change in self._changes:
            change(heads, step)
        attended = self._attention.attend(qkv[:, : self._query_size], qkv[:, self._query_size :], cache, metadata)
        return self._output(attended if self._gate is None else self._gate(x).sigmoid_().mul_(attended))


class NormHeads:
    """A HeadChange that norms queries and keys, each over the dimensions of a head.

    Args:
        num_heads: H.
        query_norm, key_norm: [..., H, D] -> [..., H, D].
    """

    def __init__(self, num_heads: int, query_norm: Norm, key_norm: Norm) -> None:
        self._num_heads, self._query_norm, self._key_norm = num_heads, query_norm, key_norm

    def __call__(self, heads: torch.Tensor, step: Step) -> None:  # noqa: ARG002 - one signature
        """See HeadChange."""
        heads[:, : self._num_heads] = self._query_norm(heads[:, : self._num_heads])
        heads[:, self._num_heads :] = self._key_norm(heads[:, self._num_heads :])


class NormWhole:
    """A HeadChange that norms queries and keys, each over all their heads together.

    Args:
        num_heads: H.
        query_norm, key_norm: [T, H * D] -> [T, H * D].
    """

    def __init__(self, num_heads: int, query_norm: Norm, key_norm: Norm) -> None:
        self._num_heads, self._query_norm, self._key_norm = num_heads, query_norm, key_norm

    def __call__(self, heads: torch.Tensor, step: Step) -> None:  # noqa: ARG002 - one signature
        """See HeadChange."""
        queries, keys = heads[:, : self._num_heads], heads[:, self._num_heads :]
        queries.copy_(self._query_norm(queries.flatten(1)).view_as(queries))
        keys.copy_(self._key_norm(keys.flatten(1)).view_as(keys))


class Rotate:
    """A HeadChange that rotates queries and keys by their positions.

    Args:
        rope: index of the rotary embedding among those of the model.
    """

    def __init__(self, rope: int) -> None:
        self._rope = rope

    def __call__(self, heads: torch.Tensor, step: Step) -> None:
        """See HeadChange."""
        rotate_(heads, step.turns[self._rope])


class ScaleQueries:
    """A HeadChange that scales queries by their position.

    Args:
        num_heads: H.
        scaling: the parameters of the scaling.
    """

    def __init__(self, num_heads: int, scaling: QueryScaling) -> None:
        self._num_heads, self._scaling = num_heads, scaling

    def __call__(self, heads: torch.Tensor, step: Step) -> None:
        """See HeadChange."""
        scaling = self._scaling
        periods = torch.floor((step.positions.float() + scaling.offset) / scaling.period)
        heads[:, : self._num_heads].mul_((1 + scaling.beta * torch.log1p(periods)).to(heads.dtype)[:, None, None])
