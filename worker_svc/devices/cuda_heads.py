"""Draft heads on the cuda device: torch runs them beside the target, with weights in the type of the target's activations."""

from collections.abc import Callable, Sequence

import torch

from tetrad.worker_svc.attention.interface import HeadSizes
from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.cuda.attention import DeviceStep
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.device.offload import Offload, wake_weights
from tetrad.worker_svc.cuda.draft_head import DeviceHead
from tetrad.worker_svc.cuda.experts import mix_of
from tetrad.worker_svc.cuda.head_drafts import HeadDrafts
from tetrad.worker_svc.cuda.linears import DeviceLinears
from tetrad.worker_svc.cuda.runner import CudaModelRunner
from tetrad.worker_svc.cuda.torch_attention import TorchAttention
from tetrad.worker_svc.devices.cuda_drafted import drafting_runner
from tetrad.worker_svc.devices.cuda_model import CudaModel
from tetrad.worker_svc.kv_cache.cache import KvCache
from tetrad.worker_svc.kv_cache.layer_groups import groups_of
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.models.draft_head import DraftHead, HeadParts
from tetrad.worker_svc.models.head_share import HeadShare

ReadHead = Callable[[HeadParts[DeviceStep]], DraftHead[DeviceStep]]
"""Function (the device's parts) -> the head."""


class CudaDraftHead:
    """A CudaDrafter with a draft head; see CudaDrafter.

    Args:
        head: the head.
        tensors: the head's weights, without those that it shares with the target.
        accelerator: the device.
        num_drafts: the usual number of drafts of a request; 0: unknown.
    """

    def __init__(self, head: DeviceHead, tensors: Sequence[torch.Tensor], accelerator: Accelerator, num_drafts: int) -> None:
        self._head, self._accelerator, self._num_drafts = head, accelerator, num_drafts
        self._weights = Offload(accelerator, tensors)
        self.kv_cache_spec = head.kv_cache_spec
        self.weights_size_bytes = self.weights_on_device_bytes = sum(tensor.nbytes for tensor in tensors)

    def check_layout(self, layout: KvLayout) -> None:
        """Do nothing: a head makes no proposals beyond its largest position."""

    def drafts(self, runner: CudaModelRunner, cache: KvCache) -> HeadDrafts:
        """See CudaDrafter."""
        return HeadDrafts(runner, self._head, cache, self._num_drafts)

    def worst_case_bytes(self, target: CudaModel, max_num_batched_tokens: int) -> int:
        """Return the bytes of the largest step with the head behind it; see CudaDrafter."""
        return target.worst_case_bytes(max_num_batched_tokens, lambda runner: drafting_runner(runner, self))

    def sleep(self) -> None:
        """See CudaDrafter."""
        self._weights.sleep()

    def wake_up(self) -> None:
        """See CudaDrafter."""
        wake_weights(self._weights, self._accelerator)


def load_head(
    read: ReadHead,
    config: ModelConfig,
    weights: WeightLoader,
    target: CudaModel,
    accelerator: Accelerator,
    states_of: Callable[[torch.Tensor], torch.Tensor],
    num_drafts: int,
    share: HeadShare,
) -> CudaDraftHead:
    """Return a head of `target`, with its weights on the device.

    Args:
        read: builds the head.
        config: the description of the head's layer.
        weights: the tensors of the share.
        target: the model; its types are the head's.
        accelerator: the device.
        states_of: returns the head's input states for the target's last hidden states.
        num_drafts: the usual number of drafts of a request; 0: unknown.
        share: this rank's part of the head.
    """
    part = share.part_of(config)
    dtype, cache_dtype = target.decoder.dtype, target.decoder.kv_cache_spec.dtype
    linears = DeviceLinears(None, "", weights, accelerator.device, dtype)
    attention = TorchAttention(HeadSizes(part.num_heads, part.num_kv_heads, part.head_dim), groups_of(part))
    head = read(HeadParts(linears, attention, mix_of, accelerator.device, share))
    on_device = DeviceHead(head, attention, dtype, cache_dtype, states_of)
    return CudaDraftHead(on_device, linears.tensors, accelerator, num_drafts)
