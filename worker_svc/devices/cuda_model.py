"""CUDA model: a decoder in the memory of a GPU, as the worker uses it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from tetrad.services.errors import FailedPrecondition, ModelError
from tetrad.worker_svc.core.device import KvGroup, KvLayout, ModelInfo
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.media import ModelMedia
from tetrad.worker_svc.core.sampler_options import DEFAULT_SAMPLER, SamplerOptions
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.device.offload import Offload, tensors_in, wake_weights
from tetrad.worker_svc.cuda.device.weight_offload import WeightOffload
from tetrad.worker_svc.cuda.interface import DeviceModel
from tetrad.worker_svc.cuda.loras import DeviceLoras
from tetrad.worker_svc.cuda.media.device_media import DeviceMedia
from tetrad.worker_svc.cuda.memory_profile import Wrap, largest_asked, worst_case_bytes
from tetrad.worker_svc.cuda.pooling_rows import DevicePooling, DevicePoolingRows
from tetrad.worker_svc.cuda.runner import CudaModelRunner
from tetrad.worker_svc.cuda.runner_parts import WHOLE, RunnerParts
from tetrad.worker_svc.devices.poolers import Pooling


class CudaModel:
    """A LoadedModel in device memory.

    Attributes:
        decoder: the model's program.
        uses_graphs: whether its steps are recorded, if they can be.

    Args:
        media: its tower; None: it takes only text.
        parts: see CudaModelRunner.
    """

    def __init__(
        self,
        model: DeviceModel,
        info: ModelInfo,
        accelerator: Accelerator,
        offload: WeightOffload,
        *,
        use_graphs: bool,
        loras: DeviceLoras | None = None,
        pooling: Pooling | None = None,
        media: DeviceMedia | None = None,
        sampling: SamplerOptions = DEFAULT_SAMPLER,
        parts: RunnerParts = WHOLE,
    ) -> None:
        self.decoder, self._accelerator, self._offload, self._pooling = model, accelerator, offload, pooling
        # A graph computes logits, which a model that only pools does not use.
        self.uses_graphs = use_graphs and (pooling is None or pooling.facts.generates)
        self._weights = Offload(accelerator, tensors_in((model, loras, pooling, None if media is None else media.media.tower)))
        self.info, self.loras, self._sampling, self._parts = info, loras, sampling, parts
        self._media = media

    @property
    def media(self) -> ModelMedia | None:
        """See TakesMedia."""
        return None if self._media is None else self._media.media

    @property
    def weights_on_device_bytes(self) -> int:
        """The bytes of device memory for weights: those that are not offloaded, and the buffers for those that are."""
        return self.info.weights_size_bytes - self._offload.freed_bytes

    def kv_groups(self, block_size: int) -> tuple[KvGroup, ...]:
        """Return the groups of the KV cache."""
        return self.decoder.kv_cache_spec.kv_groups(block_size)

    def make_runner(self, layout: KvLayout) -> CudaModelRunner:
        """Allocate the KV cache and return the runner; raise FailedPrecondition if memory is too small for the cache."""
        check_room(layout, self.decoder.kv_cache_spec.block_size_bytes(layout.block_size), self._accelerator)
        return CudaModelRunner(
            self.decoder,
            layout,
            self._accelerator,
            use_graphs=self.uses_graphs,
            loras=self.loras,
            pooling=self._pooling_rows(),
            media=None if self._media is None else self._media.of,
            sampling=self._sampling,
            parts=self._parts,
        )

    def sleep(self) -> None:
        """Move the weights to pinned host memory."""
        self._weights.sleep()

    def wake_up(self) -> None:
        """Move the weights back to the device; raise FailedPrecondition, with the numbers, if it has too little free memory."""
        wake_weights(self._weights, self._accelerator)

    def worst_case_bytes(self, max_num_batched_tokens: int, wrap: Wrap | None = None) -> int:
        """Return the bytes that the largest step needs in addition to weights and KV cache; see memory_profile.py."""
        asked = largest_asked(self.info.pooling)
        return worst_case_bytes(
            self.decoder,
            self._accelerator,
            max_num_batched_tokens,
            self.loras,
            self._pooling_rows(),
            asked,
            wrap,
            use_graphs=self.uses_graphs,
            parts=self._parts,
        )

    def _pooling_rows(self) -> Callable[[InputBatch], DevicePoolingRows] | None:
        """Return a function that creates the runner's pooling part; None if the model only generates."""
        if self._pooling is None:
            return None
        pooler, facts = self._pooling.pooler, self._pooling.facts
        return partial(DevicePooling, pooler, facts, self.decoder.normed, self._accelerator.upload)


def check_room(layout: KvLayout, block_size_bytes: int, accelerator: Accelerator) -> None:
    """Raise FailedPrecondition, with the numbers, if the device has too little free memory for a KV cache."""
    needed = layout.num_blocks * block_size_bytes
    free, total = accelerator.memory()
    if needed > free:
        raise FailedPrecondition(
            f"The KV cache of num_blocks {layout.num_blocks} of block_size {layout.block_size} needs {needed} bytes; "
            f"{free} of the device's {total} are free."
        )


@contextmanager
def whole_model(name: str, accelerator: Accelerator, total_bytes: int) -> Iterator[None]:
    """Raise ModelError, with the numbers, if the device has too little memory for a model with `total_bytes` of files."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        free, total = accelerator.memory()
        raise ModelError(
            f"{name} does not fit the device: its files have {total_bytes} bytes, the device has {total}, "
            f"of which {free} were free when memory ran out."
        ) from error
