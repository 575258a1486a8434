"""Drafted model of the CUDA device: a model in device memory, and a smaller one that proposes its next tokens.

Both have separate keys and values under the same block ids, so a block takes the memory of both.
"""

from dataclasses import replace

from tetrad.worker_svc.core.device import KvGroup, KvLayout
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.drafting_runner import DeviceDraftingRunner
from tetrad.worker_svc.devices.cuda_model import CudaModel, check_room
from tetrad.worker_svc.devices.drafted_model import check_positions, check_same_vocabulary, check_sees_all
from tetrad.worker_svc.kv_cache.cache import KvCache


class CudaDraftedModel:
    """The LoadedModel of a target model and its draft model; see LoadedModel.

    Args:
        target: the model that samples.
        drafter: the draft model.
        accelerator: the device.

    Raises:
        ModelError: the models do not fit together.
    """

    def __init__(self, target: CudaModel, drafter: CudaModel, accelerator: Accelerator) -> None:
        check_same_vocabulary(target, drafter.info.vocab_size)
        check_sees_all("target", target)
        check_sees_all("draft model", drafter)
        self._target, self._drafter, self._accelerator = target, drafter, accelerator
        size_bytes = target.info.weights_size_bytes + drafter.info.weights_size_bytes
        self.info, self.loras = replace(target.info, weights_size_bytes=size_bytes), target.loras

    @property
    def weights_on_device_bytes(self) -> int:
        """The bytes of device memory for the weights of both models."""
        return self._target.weights_on_device_bytes + self._drafter.weights_on_device_bytes

    def kv_groups(self, block_size: int) -> tuple[KvGroup, ...]:
        """Return the target's group; the size of a block is the sum of both models' blocks."""
        [group], [own] = self._target.kv_groups(block_size), self._drafter.kv_groups(block_size)
        return (replace(group, block_size_bytes=group.block_size_bytes + own.block_size_bytes),)

    def make_runner(self, layout: KvLayout) -> DeviceDraftingRunner:
        """Allocate both KV caches and return the drafting runner, which wraps the target's.

        Raises FailedPrecondition if memory is too small, or sequences can be too long for the draft model.
        """
        check_positions(self._drafter, layout)
        check_room(layout, self.kv_groups(layout.block_size)[0].block_size_bytes, self._accelerator)
        runner, model = self._target.make_runner(layout), self._drafter.decoder
        cache = KvCache(
            model.kv_cache_spec,
            num_blocks=layout.num_blocks,
            block_size=layout.block_size,
            num_host_blocks=layout.num_host_blocks,
            device=self._accelerator.device,
        )
        return DeviceDraftingRunner(runner, model, cache)

    def sleep(self) -> None:
        """Move the weights of both models to pinned host memory."""
        self._target.sleep()
        self._drafter.sleep()

    def wake_up(self) -> None:
        """Move the weights back to the device; raise FailedPrecondition if it has too little free memory."""
        self._target.wake_up()
        self._drafter.wake_up()

    def worst_case_bytes(self, max_num_batched_tokens: int) -> int:
        """Return the bytes that the largest step of both models needs in addition to weights and KV caches."""
        return sum(model.worst_case_bytes(max_num_batched_tokens) for model in (self._target, self._drafter))
