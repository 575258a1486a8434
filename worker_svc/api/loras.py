"""LoRA loading: reads adapters while the compute thread runs steps, and installs them between steps.

Called by the lifecycle service, on the event loop. A separate thread reads and packs files, one adapter at a time, so that no
step waits for a disk; the compute thread only installs the packed adapter. The thread has a lower priority than those that
compute steps, because on a machine without an idle core each of its time slices would delay a step.
"""

from pathlib import Path

from tetrad.services.errors import FailedPrecondition
from tetrad.services.log import get_logger
from tetrad.worker_svc.core.lora import ModelLoras, PackedLora
from tetrad.worker_svc.worker.compute_thread import ComputeThread
from tetrad.worker_svc.worker.worker import Worker

log = get_logger()


_NICENESS = 10
"""Gives the thread about a tenth of a core's time while all cores compute steps."""


class LoraLoading:
    """Loads and unloads the adapters of a worker for its engine core.

    Args:
        worker, compute: the worker and the thread that owns it.
    """

    def __init__(self, worker: Worker, compute: ComputeThread) -> None:
        self._worker, self._compute = worker, compute
        self._reading: ComputeThread | None = None  # started with the first adapter

    async def install(self, lora_id: int, path: str) -> bytes:
        """Install an adapter and return the hash of its files.

        Raises:
            NotFound, ModelError: it cannot be used.
            FailedPrecondition: the model has fallen asleep, or was replaced, while the adapter was read.
        """
        loras = await self._compute.submit(self._worker.model_loras)
        self._reading = self._reading or ComputeThread("adapters", niceness=_NICENESS)
        packed = await self._reading.submit(loras.read, Path(path))
        await self._compute.submit(self._install, loras, lora_id, packed)
        log.info("lora.loaded", lora_id=lora_id, path=path)
        return packed.digest

    async def unload(self, lora_id: int) -> None:
        """Remove an adapter; do nothing if it is not loaded."""
        loras = await self._compute.submit(self._worker.model_loras)
        await self._compute.submit(loras.remove, lora_id)
        log.info("lora.unloaded", lora_id=lora_id)

    def _install(self, loras: ModelLoras, lora_id: int, packed: PackedLora) -> None:
        """Install an adapter that was read for `loras`; runs on the compute thread."""
        if self._worker.model_loras() is not loras:
            raise FailedPrecondition("The model was replaced while the adapter was read.", reason="NOT_READY")
        loras.install(lora_id, packed)
