"""CUDA encoder: the LoadedModel of an encoder, or of a decoder with bidirectional attention, in device memory; no KV cache."""

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
    """The LoadedModel of an encoder on the device; see LoadedModel.

    Args:
        encoder: the encoder, in device memory.
        pooling: the pooler, in device memory.
        info: facts about the model.
        accelerator: the device.
    """

    def __init__(self, encoder: PackedEncoder, pooling: Pooling, info: ModelInfo, accelerator: Accelerator) -> None:
        self._encoder, self._pooling, self._accelerator = encoder, pooling, accelerator
        self._weights = Offload(accelerator, tensors_in((encoder, pooling)))
        self.info, self.loras = info, None

    @property
    def weights_on_device_bytes(self) -> int:
        """The bytes of device memory for weights."""
        return self.info.weights_size_bytes

    def kv_groups(self, block_size: int) -> tuple[KvGroup, ...]:  # noqa: ARG002 - as LoadedModel
        """Return no groups: an encoder has no KV cache."""
        return ()

    def make_runner(self, layout: KvLayout) -> EncoderRunner:
        """Return a runner; nothing is allocated."""
        answers = DeviceAnswers(self._accelerator)
        return EncoderRunner(self._encoder, self._pooling.pooler, self._pooling.facts, layout, answers)

    def sleep(self) -> None:
        """Move the weights to pinned host memory."""
        self._weights.sleep()

    def wake_up(self) -> None:
        """Move the weights back to the device; raise FailedPrecondition, with the numbers, if it has too little free memory."""
        wake_weights(self._weights, self._accelerator)

    @torch.inference_mode()
    def worst_case_bytes(self, max_num_batched_tokens: int) -> int:
        """Return the bytes that the largest step needs in addition to the weights: as many of the longest prompts as fit."""
        longest = min(self.info.max_position_embeddings, max_num_batched_tokens)
        prompts = [np.zeros(longest, np.int64)] * (max_num_batched_tokens // longest)
        packed = PackedPrompts.of(prompts, [None] * len(prompts))
        return self._accelerator.peak_bytes(lambda: _forget(self._encoder.forward(packed)))


def device_encoder(accelerator: Accelerator) -> BuildEncoder:
    """Return a function that builds an encoder on a device."""
    groups_of = PackedPrompts.groups_of_similar_length
    return lambda facts, tensors, _: Encoder(facts, tensors, PlainLinear, accelerator.upload, groups_of)


def _forget(hidden: torch.Tensor) -> None:
    """Discard a step's hidden states."""
