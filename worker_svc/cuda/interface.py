"""Model interface on a device: the methods that the CUDA runner calls on a model of any implementation."""

from collections.abc import Sequence
from typing import Protocol

import torch

from tetrad.worker_svc.cuda.attention import DeviceStep
from tetrad.worker_svc.cuda.sizes import DeviceSizes
from tetrad.worker_svc.kv_cache.cache import KvCacheSpec
from tetrad.worker_svc.layers.parameters import Parameters
from tetrad.worker_svc.models.decoder import GivenEmbeddings
from tetrad.worker_svc.models.host import HostSteps


class DeviceParameters(Parameters, Protocol):
    """The weights of a model on a device."""

    @property
    def dtype(self) -> torch.dtype:
        """The type of activations."""

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All loaded tensors, as stored on the device."""


class PagedModel(Protocol):
    """The facts of a model or a draft head that the inputs of its passes depend on."""

    @property
    def config(self) -> DeviceSizes:
        """The model's sizes."""

    @property
    def kv_cache_spec(self) -> KvCacheSpec:
        """The shape of the model's KV cache."""

    @property
    def has_kernel_attention(self) -> bool:
        """Whether any layer uses an attention kernel."""

    @property
    def host_steps(self) -> HostSteps | None:
        """The builder of host metadata, which each step needs and no graph can record; None: no metadata is needed."""

    @property
    def dtype(self) -> torch.dtype:
        """The type of hidden states."""


class DeviceModel(PagedModel, Protocol):
    """A loaded decoder, or a stage of one. It keeps no state between steps, and only queues work for the device."""

    @property
    def bytes_per_draft(self) -> int:
        """The bytes that the layers keep for each draft until the end of its step."""

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: list[torch.Tensor],
        metadata: Sequence[DeviceStep],
        *,
        given: GivenEmbeddings | None = None,
        axes: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the last layer's hidden states [T, hidden]; write keys, values and states to the caches.

        Args:
            token_ids: [T] int32. A stage after the first takes the hidden states [T, hidden] of the stage before in their
                place, and may change them.
            positions: [T] int32, of rotary embeddings.
            caches: for each layer [num_blocks, block_size, 2, num_kv_heads, head_dim], or [num_blocks, numbers] for a state.
            metadata: the step's metadata for each KV group.
            given: embeddings that replace those of token ids, and rows that are added behind the first layers.
            axes: [3, T] int32, positions on three axes that replace `positions` (M-RoPE); None: `positions` apply.
        """

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the normed hidden states [N, hidden] of rows that `forward` returned."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits [N, vocab_size] float32 of hidden states [N, hidden]."""
