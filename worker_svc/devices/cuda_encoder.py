"""CUDA encoder: an encoder, or a decoder that sees in both directions, in device memory. A LoadedModel without a KV cache."""

import numpy as np
import torch

from tetrad.worker_svc.core.device import KvGroup, KvLayout, ModelInfo
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.device.offload import Offload, tensors_in, wake_weights
from tetrad.worker_svc.cuda.encoder_answers import DeviceAnswers
from tetrad.worker_svc.devices.encoder_model import BuildEncoder
from tetrad.worker_svc.devices.poolers import Pooling
from tetrad.worker_svc.layers.linear import PlainLinear
from tetrad.worker_svc.models.encoder import Encoder
from tetrad.worker_svc.models.packed_prompts import PackedEncoder, PackedPrompts
from tetrad.worker_svc.runner.encoder_runner import EncoderRunner


class CudaEncoder:
    """See LoadedModel.

    Args:
        encoder: on the device.
        pooling: on the device.
        info: of the model.
        accelerator: the device.
    """

    def __init__(self, encoder: PackedEncoder, pooling: Pooling, info: ModelInfo, accelerator: Accelerator) -> None:
        self._encoder, self._pooling, self._accelerator = encoder, pooling, accelerator
        self._weights = Offload(accelerator, tensors_in((encoder, pooling)))
        self.info, self.loras = info, None

    @property
    def weights_on_device_bytes(self) -> int:
        """Memory of the weights."""
        return self.info.weights_size_bytes

    def kv_groups(self, block_size: int) -> tuple[KvGroup, ...]:  # noqa: ARG002 - as LoadedModel
        """Return no group: nothing is cached."""
        return ()

    def make_runner(self, layout: KvLayout) -> EncoderRunner:
        """Return what runs steps; nothing is allocated."""
        answers = DeviceAnswers(self._accelerator)
        return EncoderRunner(self._encoder, self._pooling.pooler, self._pooling.facts, layout, answers)

    def sleep(self) -> None:
        """Move the weights to pinned host memory."""
        self._weights.sleep()

    def wake_up(self) -> None:
        """Move them back; FailedPrecondition, with the numbers, if the device has no room."""
        wake_weights(self._weights, self._accelerator)

    @torch.inference_mode()
    def worst_case_bytes(self, max_num_batched_tokens: int) -> int:
        """Return the memory that the largest step takes beyond the weights: of the longest prompts, as many as fit."""
        longest = min(self.info.max_position_embeddings, max_num_batched_tokens)
        prompts = [np.zeros(longest, np.int64)] * (max_num_batched_tokens // longest)
        packed = PackedPrompts.of(prompts, [None] * len(prompts))
        return self._accelerator.peak_bytes(lambda: _forget(self._encoder.forward(packed)))


def device_encoder(accelerator: Accelerator) -> BuildEncoder:
    """Return what builds an encoder on a device."""
    groups_of = PackedPrompts.groups_of_similar_length
    return lambda facts, tensors, _: Encoder(facts, tensors, PlainLinear, accelerator.upload, groups_of)


def _forget(hidden: torch.Tensor) -> None:
    """Drop a step's hidden states."""
