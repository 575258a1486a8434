"""Packed attention in torch: computes bidirectional attention over whole prompts, packed one after another, without a cache.

Dims: K kv heads, G query heads per kv head, L tokens of a prompt, D head size.
"""

from collections.abc import Sequence

import torch

from tetrad.services.errors import ModelError
from tetrad.worker_svc.attention.interface import AttentionShape
from tetrad.worker_svc.attention.scores import Scores, Seen, scores_of

Bounds = Sequence[tuple[int, int]]
"""Range of each prompt's tokens: (first, end), end not included."""


class PackedAttention:
    """The AttentionBackend of whole prompts.

    Args:
        num_heads, num_kv_heads, head_dim: the heads of the model.
    """

    def __init__(self, *, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        self._kv_heads, self._groups, self._head_dim = num_kv_heads, num_heads // num_kv_heads, head_dim

    def layer(self, shape: AttentionShape) -> "PackedLayerAttention":
        """See AttentionBackend; raise ModelError for a layer with chunked attention, or with linear biases."""
        if shape.chunk is not None:
            raise ModelError("A model whose attention is cut into chunks cannot see in both directions.")
        if shape.slopes is not None:
            raise ModelError("A model with linear biases of scores (ALiBi) cannot see in both directions.")
        return PackedLayerAttention(
            scores_of(shape, self._kv_heads), (self._kv_heads, self._groups, self._head_dim), shape.window
        )


class PackedLayerAttention:
    """One layer's attention; see LayerAttention.

    Args:
        scores: compute outputs from queries, keys and values.
        sizes: K, G, D.
        window: a token attends to window // 2 tokens on each side; None: to all.
    """

    def __init__(self, scores: Scores, sizes: tuple[int, int, int], window: int | None) -> None:
        self._scores, self._sizes, self._window = scores, sizes, window

    def attend(
        self,
        query: torch.Tensor,
        key_value: torch.Tensor,
        cache: torch.Tensor,  # noqa: ARG002 - of the protocol
        metadata: Bounds,
    ) -> torch.Tensor:
        """Return the attention [T, K * G * D] for queries of that shape and key_value [T, 2 * K * D]."""
        kv_heads, groups, dim = self._sizes
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        for start, end in metadata:
            length = end - start
            queries = query[start:end].reshape(length, kv_heads, groups, dim).permute(1, 2, 0, 3)
            both = key_value[start:end].reshape(length, 2, kv_heads, 1, dim).permute(1, 2, 3, 0, 4)
            key, value = both.expand(-1, -1, groups, -1, -1)
            found = self._scores.chunk(queries, key, value, Seen(self._mask(query, length)))
            output[start:end] = found.permute(2, 0, 1, 3).reshape(length, -1)
        return output

    def _mask(self, query: torch.Tensor, length: int) -> torch.Tensor:
        mask = query.new_zeros(length, length)
        if self._window is None:
            return mask
        places = torch.arange(length, device=query.device)
        return mask.masked_fill_((places[:, None] - places).abs() > self._window // 2, -torch.inf)
