"""Scores: computes attention over contiguous queries, keys and values, with torch's fused kernel, or with the plain formula for
layers with capped scores or sinks.

Dims: B decode rows, K kv heads, G query heads per kv head, T queries, L keys, D head size.
"""

from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812

from tetrad.worker_svc.attention.interface import AttentionShape


class Scores(Protocol):
    """The computation of attention: softmax of scores, times values."""

    def decodes(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return [B, K, G, D] for queries [B, K, G, D], keys and values [B, K, L, D]; the mask [B, K, G, L] is added."""

    def chunk(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return [K, G, T, D] for queries [K, G, T, D], keys and values [K, G, L, D]; the mask [T, L] is added to scores."""


def scores_of(shape: AttentionShape, num_kv_heads: int) -> Scores:
    """Return the computation of a layer's scores."""
    return WrittenOut(shape, num_kv_heads) if shape.softcap or shape.sinks is not None else Fused(shape.scale)


class Fused:
    """Scores with torch's fused kernel.

    Args:
        scale: factor of the products of queries and keys.
    """

    def __init__(self, scale: float) -> None:
        self._scale = scale

    def decodes(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """See Scores."""
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=self._scale)

    def chunk(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """See Scores."""
        return self.decodes(query, key, value, mask)


class WrittenOut:
    """Scores with the plain formula.

    Args:
        shape: the parameters of the layer's attention.
        num_kv_heads: K.
    """

    def __init__(self, shape: AttentionShape, num_kv_heads: int) -> None:
        self._scale, self._softcap = shape.scale, shape.softcap
        self._sinks = None if shape.sinks is None else shape.sinks.view(num_kv_heads, -1, 1)  # [K, G, 1]

    def decodes(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """See Scores."""
        return self._weights(query, key, mask, self._sinks) @ value

    def chunk(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """See Scores."""
        return self._weights(query, key, mask, None if self._sinks is None else self._sinks[..., None]) @ value

    def _weights(self, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
        scores = query @ key.transpose(-1, -2) * self._scale
        if self._softcap:
            scores = self._softcap * torch.tanh(scores / self._softcap)
        scores = scores + mask
        if sinks is None:
            return scores.softmax(-1)
        with_sink = torch.cat([scores, sinks.expand(*scores.shape[:-1], 1)], -1)
        return with_sink.softmax(-1)[..., :-1]
