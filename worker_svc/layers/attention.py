"""Self-attention layer: qkv as one product, optional norm of queries and keys, rotation, paged attention, output product."""

from typing import Any

import torch

from tetrad.worker_svc.attention.interface import AttentionBackend
from tetrad.worker_svc.layers.linear import Linear
from tetrad.worker_svc.layers.norm import RmsNorm
from tetrad.worker_svc.layers.rotary import rotate_


class SelfAttention:
    """One layer's attention.

    Args:
        qkv: [hidden] -> [(num_heads + 2 * num_kv_heads) * head_dim], rows of q and k interleaved (rotary.py).
        output: [num_heads * head_dim] -> [hidden].
        backend: paged attention.
        num_heads, num_kv_heads, head_dim: of the model.
        query_key_norms: norms over head_dim (Qwen3), or None.
    """

    def __init__(
        self,
        qkv: Linear,
        output: Linear,
        backend: AttentionBackend[Any],
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        query_key_norms: tuple[RmsNorm, RmsNorm] | None,
    ) -> None:
        self._qkv, self._output, self._backend, self._norms = qkv, output, backend, query_key_norms
        self._num_heads, self._head_dim = num_heads, head_dim
        self._query_size = num_heads * head_dim
        self._rotated_size = (num_heads + num_kv_heads) * head_dim

    def __call__(self, x: torch.Tensor, turns: torch.Tensor, cache: torch.Tensor, metadata: Any) -> torch.Tensor:
        """Return [T, hidden]; writes the layer's cache."""
        qkv = self._qkv(x)
        heads = qkv[:, : self._rotated_size].view(len(x), -1, self._head_dim)
        if self._norms is not None:
            query_norm, key_norm = self._norms
            heads[:, : self._num_heads] = query_norm(heads[:, : self._num_heads])
            heads[:, self._num_heads :] = key_norm(heads[:, self._num_heads :])
        rotate_(heads, turns)
        attended = self._backend.attend(qkv[:, : self._query_size], qkv[:, self._query_size :], cache, metadata)
        return self._output(attended)
