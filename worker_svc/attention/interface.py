"""Attention interface: the call that a model's layers make on every device.

A backend is made once per loaded model. Each step it builds its own metadata from the step's inputs, once for all layers.
Contract: a layer's keys and values of the whole step are written before any of them is read, because two requests of one step
may share prefix blocks that this very step fills.
"""

from typing import Protocol, TypeVar

import torch

from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.step_inputs import StepInputs

M = TypeVar("M")


class AttentionBackend(Protocol[M]):
    """Paged attention of one device; `M` is its metadata."""

    def build_metadata(self, inputs: StepInputs, batch: InputBatch) -> M:
        """Return what all layers of this step share."""

    def attend(self, query: torch.Tensor, key_value: torch.Tensor, cache: torch.Tensor, metadata: M) -> torch.Tensor:
        """Write the step's keys and values into a layer's cache, then attend.

        Args:
            query: [T, num_heads * head_dim].
            key_value: [T, 2 * num_kv_heads * head_dim], keys before values.
            cache: the layer's [num_blocks, block_size, 2, num_kv_heads, head_dim].
            metadata: what build_metadata returned for this step.

        Returns:
            [T, num_heads * head_dim]; valid until the next call.
        """
