"""Drafted model of the CUDA device: a model in device memory with a drafter, which proposes its next tokens.

Both have separate keys and values under the same block ids, so a block takes the memory of both.
"""

from dataclasses import replace
from typing import Protocol

from tetrad.services.errors import FailedPrecondition
from tetrad.worker_svc.core.device import KvGroup, KvLayout
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.drafting_runner import DeviceDraftingRunner
from tetrad.worker_svc.cuda.drafts import DeviceDrafts
from tetrad.worker_svc.cuda.model_drafts import ModelDrafts
from tetrad.worker_svc.cuda.runner import CudaModelRunner
from tetrad.worker_svc.devices.cuda_model import CudaModel, check_room
from tetrad.worker_svc.devices.drafted_model import check_positions, with_drafts
from tetrad.worker_svc.kv_cache.cache import KvCache, KvCacheSpec


class CudaDrafter(Protocol):
    """The loaded draft model or draft head of a model, which proposes the model's next tokens."""

    @property
    def weights_size_bytes(self) -> int:
        """The size of the drafter's weights in bytes."""

    @property
    def weights_on_device_bytes(self) -> int:
        """The bytes of device memory for the drafter's weights."""

    @property
    def kv_cache_spec(self) -> KvCacheSpec:
        """The shape of the drafter's KV cache."""

    def check_layout(self, layout: KvLayout) -> None:
        """Raise FailedPrecondition if the drafter cannot draft for sequences of this layout."""

    def drafts(self, runner: CudaModelRunner, cache: KvCache) -> DeviceDrafts:
        """Return what proposes tokens after the steps of `runner`; `cache` is the drafter's KV cache."""

    def worst_case_bytes(self, target: CudaModel, max_num_batched_tokens: int) -> int:
        """Return the bytes that the largest step of both needs in addition to weights and KV caches."""

    def sleep(self) -> None:
        """Move the drafter's weights to pinned host memory."""

    def wake_up(self) -> None:
        """Move the weights back to the device; raise FailedPrecondition if it has too little free memory."""


class CudaDraftModel:
    """A CudaDrafter with a smaller model; see CudaDrafter.

    Args:
        model: the draft model.
        num_drafts: the usual number of drafts of a request; 0: unknown.
    """

    def __init__(self, model: CudaModel, num_drafts: int) -> None:
        self._model, self._num_drafts = model, num_drafts
        self.weights_size_bytes, self.kv_cache_spec = model.info.weights_size_bytes, model.decoder.kv_cache_spec
        self.sleep, self.wake_up = model.sleep, model.wake_up

    @property
    def weights_on_device_bytes(self) -> int:
        """See CudaDrafter."""
        return self._model.weights_on_device_bytes

    def check_layout(self, layout: KvLayout) -> None:
        """Raise FailedPrecondition if sequences can be longer than the draft model's largest position."""
        check_positions(self._model, layout)

    def drafts(self, runner: CudaModelRunner, cache: KvCache) -> ModelDrafts:
        """See CudaDrafter."""
        return ModelDrafts(runner, self._model.decoder, cache, self._num_drafts, uses_graphs=self._model.uses_graphs)

    def worst_case_bytes(self, target: CudaModel, max_num_batched_tokens: int) -> int:
        """Return the sum of both models' largest steps; see CudaDrafter."""
        return sum(model.worst_case_bytes(max_num_batched_tokens) for model in (target, self._model))


class CudaDraftedModel:
    """The LoadedModel of a target model and its drafter; see LoadedModel.

    Args:
        target: the model that samples; its first KV group has full attention, all others have it too or have states.
        drafter: proposes tokens.
        accelerator: the device.
    """

    def __init__(self, target: CudaModel, drafter: CudaDrafter, accelerator: Accelerator) -> None:
        self._target, self._drafter, self._accelerator = target, drafter, accelerator
        size_bytes = target.info.weights_size_bytes + drafter.weights_size_bytes
        self.info, self.loras = replace(target.info, weights_size_bytes=size_bytes), target.loras
        self.media = target.media

    @property
    def weights_on_device_bytes(self) -> int:
        """The bytes of device memory for the weights of both."""
        return self._target.weights_on_device_bytes + self._drafter.weights_on_device_bytes

    def kv_groups(self, block_size: int) -> tuple[KvGroup, ...]:
        """Return the target's groups; the size of a block is the sum of the target's and the drafter's blocks."""
        return with_drafts(self._target.kv_groups(block_size), self._drafter.kv_cache_spec, block_size)

    def make_runner(self, layout: KvLayout) -> DeviceDraftingRunner:
        """Allocate both KV caches and return the drafting runner, which wraps the target's.

        Raises FailedPrecondition if memory is too small, or sequences can be too long for the drafter.
        """
        self._drafter.check_layout(layout)
        check_room(layout, self.kv_groups(layout.block_size)[0].block_size_bytes, self._accelerator)
        runner = self._target.make_runner(layout)
        return drafting_runner(runner, self._drafter)

    def sleep(self) -> None:
        """Move the weights of both to pinned host memory."""
        self._target.sleep()
        self._drafter.sleep()

    def wake_up(self) -> None:
        """Move the weights back to the device; raise FailedPrecondition, without any change, if it has too little memory."""
        self._target.wake_up()
        try:
            self._drafter.wake_up()
        except FailedPrecondition:
            self._target.sleep()
            raise

    def worst_case_bytes(self, max_num_batched_tokens: int) -> int:
        """Return the bytes that the largest step of both needs in addition to weights and KV caches."""
        return self._drafter.worst_case_bytes(self._target, max_num_batched_tokens)


def drafting_runner(runner: CudaModelRunner, drafter: CudaDrafter) -> DeviceDraftingRunner:
    """Allocate the drafter's KV cache, and return the drafting runner that wraps the target's."""
    layout = runner.layout
    cache = KvCache(
        drafter.kv_cache_spec,
        num_blocks=layout.num_blocks,
        block_size=layout.block_size,
        num_host_blocks=layout.num_host_blocks,
        device=runner.accelerator.device,
    )
    return DeviceDraftingRunner(runner, drafter.drafts(runner, cache))
