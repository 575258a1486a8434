"""Scores: computes attention over contiguous queries, keys and values, with torch's fused kernel, or with the plain formula for
layers with capped scores or sinks. Linear biases are added to the mask.

Dims: B decode rows, K kv heads, G query heads per kv head, T queries, L keys, D head size.
"""

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F  # noqa: N812

from tetrad.worker_svc.attention.interface import AttentionShape


class Seen(NamedTuple):
    """What queries see of keys: the mask, 0 or -inf, and the position of each key minus that of the query (None: not needed).

    Both are [B, L] for decodes, and [T, L] for a chunk.
    """

    mask: torch.Tensor
    distances: torch.Tensor | None = None

    def of_rows(self, rows: slice) -> "Seen":
        """Return the same for some queries."""
        return Seen(self.mask[rows], None if self.distances is None else self.distances[rows])


class Scores(Protocol):
    """The computation of attention: softmax of scores, times values."""

    def decodes(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: Seen) -> torch.Tensor:
        """Return [B, K, G, D] for queries [B, K, G, D], keys and values [B, K, L, D]."""

    def chunk(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: Seen) -> torch.Tensor:
        """Return [K, G, T, D] for queries [K, G, T, D], keys and values [K, G, L, D]."""


class Masks(Protocol):
    """The numbers that are added to scores: the mask, and biases."""

    def decodes(self, seen: Seen) -> torch.Tensor:
        """Return [B, K or 1, G or 1, L]."""

    def chunk(self, seen: Seen) -> torch.Tensor:
        """Return [T, L] or [K, G, T, L]."""


def scores_of(shape: AttentionShape, num_kv_heads: int) -> Scores:
    """Return the computation of a layer's scores."""
    masks = Unbiased() if shape.slopes is None else LinearBiases(shape.slopes.view(num_kv_heads, -1, 1))
    is_plain = not shape.softcap and shape.sinks is None
    return Fused(shape.scale, masks) if is_plain else WrittenOut(shape, num_kv_heads, masks)


class Unbiased:
    """Masks without biases."""

    def decodes(self, seen: Seen) -> torch.Tensor:
        """See Masks."""
        return seen.mask[:, None, None]

    def chunk(self, seen: Seen) -> torch.Tensor:
        """See Masks."""
        return seen.mask


class LinearBiases:
    """Masks with the linear biases of heads.

    Args:
        slopes: [K, G, 1].
    """

    def __init__(self, slopes: torch.Tensor) -> None:
        self._slopes = slopes

    def decodes(self, seen: Seen) -> torch.Tensor:
        """See Masks."""
        assert seen.distances is not None
        return seen.distances[:, None, None] * self._slopes + seen.mask[:, None, None]

    def chunk(self, seen: Seen) -> torch.Tensor:
        """See Masks."""
        assert seen.distances is not None
        return seen.distances * self._slopes[..., None] + seen.mask


class Fused:
    """Scores with torch's fused kernel.

    Args:
        scale: factor of the products of queries and keys.
        masks: the numbers that are added to scores.
    """

    def __init__(self, scale: float, masks: Masks) -> None:
        self._scale, self._masks = scale, masks

    def decodes(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: Seen) -> torch.Tensor:
        """See Scores."""
        mask = self._masks.decodes(seen).expand(*query.shape[:3], -1)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=self._scale)

    def chunk(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: Seen) -> torch.Tensor:
        """See Scores."""
        return F.scaled_dot_product_attention(query, key, value, attn_mask=self._masks.chunk(seen), scale=self._scale)


class WrittenOut:
    """Scores with the plain formula.

    Args:
        shape: the parameters of the layer's attention.
        num_kv_heads: K.
        masks: the numbers that are added to scores.
    """

    def __init__(self, shape: AttentionShape, num_kv_heads: int, masks: Masks) -> None:
        self._scale, self._softcap, self._masks = shape.scale, shape.softcap, masks
        self._sinks = None if shape.sinks is None else shape.sinks.view(num_kv_heads, -1, 1)  # [K, G, 1]

    def decodes(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: Seen) -> torch.Tensor:
        """See Scores."""
        return self._weights(query, key, self._masks.decodes(seen), self._sinks) @ value

    def chunk(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: Seen) -> torch.Tensor:
        """See Scores."""
        sinks = None if self._sinks is None else self._sinks[..., None]
        return self._weights(query, key, self._masks.chunk(seen), sinks) @ value

    def _weights(self, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
        scores = query @ key.transpose(-1, -2) * self._scale
        if self._softcap:
            scores = self._softcap * torch.tanh(scores / self._softcap)
        scores = scores + mask
        if sinks is None:
            return scores.softmax(-1)
        with_sink = torch.cat([scores, sinks.expand(*scores.shape[:-1], 1)], -1)
        return with_sink.softmax(-1)[..., :-1]
