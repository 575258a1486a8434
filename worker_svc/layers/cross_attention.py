"""Cross-attention: each token attends to all positions of the encoder's output of its sequence.

The keys and values are computed once for an item, when it is encoded (media/whisper_tower.py); a layer computes only queries.
Sequences are computed one by one, so that the result of one does not depend on the others.
"""

import torch

from tetrad.worker_svc.layers.linear import Linear
from tetrad.worker_svc.layers.step import Step


class CrossAttention:
    """One layer's cross-attention.

    Args:
        query: [hidden] -> [num_heads * head_dim].
        output: [num_heads * head_dim] -> [hidden].
        layer: number of the layer.
        num_heads, head_dim: the heads.
        scale: factor of the products of queries and keys.
    """

    def __init__(self, query: Linear, output: Linear, *, layer: int, num_heads: int, head_dim: int, scale: float) -> None:
        self._query, self._output, self._layer = query, output, layer
        self._heads, self._scale = (num_heads, head_dim), scale

    def __call__(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """Return the output [T, hidden] for x [T, hidden]; tokens without an encoder's output attend to nothing."""
        query = self._query(x).view(len(x), *self._heads).transpose(0, 1)  # [H, T, D]
        attended = torch.zeros_like(query)
        for rows in step.attended:
            keys, values = rows.keys_values[self._layer]
            # A third faster for one query than torch's fused kernel on the host.
            scores = torch.bmm(query[:, rows.tokens], keys.transpose(1, 2)).mul_(self._scale)
            weights = scores.softmax(-1)
            rows.sink.take(self._layer, weights)
            attended[:, rows.tokens] = torch.bmm(weights, values)
        return self._output(attended.transpose(0, 1).reshape(len(x), -1))
