"""Model interface on a device: the methods that the CUDA runner calls, whichever program runs the model."""

from collections.abc import Sequence
from typing import Protocol

import torch

from tetrad.worker_svc.cuda.attention import DeviceStep
from tetrad.worker_svc.kv_cache.cache import KvCacheSpec
from tetrad.worker_svc.layers.parameters import Parameters
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.models.decoder import GivenEmbeddings
from tetrad.worker_svc.models.host import HostSteps


class DeviceParameters(Parameters, Protocol):
    """The weights of a model on a device."""

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All that was loaded, as it is held on the device."""


class DeviceModel(Protocol):
    """A loaded decoder; stateless between steps. It only queues work for the device."""

    @property
    def config(self) -> ModelConfig:
        """The model's description."""

    @property
    def kv_cache_spec(self) -> KvCacheSpec:
        """The shape of its KV cache."""

    @property
    def has_kernel_attention(self) -> bool:
        """Whether the attention of any layer is a kernel's."""

    @property
    def host_steps(self) -> HostSteps | None:
        """What the host prepares for each step, of which no graph can be recorded; None: nothing."""

    @property
    def dtype(self) -> torch.dtype:
        """Of hidden states."""

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: list[torch.Tensor],
        metadata: Sequence[DeviceStep],
        *,
        given: GivenEmbeddings | None = None,
    ) -> torch.Tensor:
        """Return the last layer's hidden states [T, hidden] of tokens [T] int32; writes the caches.

        Args:
            token_ids: [T] int32.
            positions: [T] int32.
            caches: a layer's [num_blocks, block_size, 2, num_kv_heads, head_dim] each; of a state [num_blocks, numbers].
            metadata: of the step, for each KV group.
            given: embeddings in place of ids.
        """

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return rows [N, hidden] of what `forward` returned behind the last norm."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [N, vocab_size] float32 for hidden states [N, hidden]."""
