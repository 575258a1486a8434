"""Placement: divides a machine's cores, memory and GPUs among the workers of a local stack.

Called by the local stack. A single worker gets everything. Knows settings; starts nothing.
"""

import os
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.services.errors import InvalidRequest
from tetrad.services.settings import replaced
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.host import usable_cores

_VISIBLE = "CUDA_VISIBLE_DEVICES"


class Placement:
    """The share of cores, memory and GPUs of each worker.

    Args:
        worker: the settings that all workers have in common.
        num_workers: the number of workers of the whole stack.

    Raises:
        InvalidRequest: there are fewer GPUs than workers that need one.
    """

    def __init__(self, worker: WorkerSettings, num_workers: int) -> None:
        self._num_workers = num_workers
        self._gpus = _gpus() if worker.device in ("auto", "cuda") else ()
        if self._gpus and len(self._gpus) < num_workers > 1:
            raise InvalidRequest(
                f"{num_workers} workers need a GPU each, and this machine shows {len(self._gpus)}: lower data_parallel_size, "
                "num_prefill_engines, tensor_parallel_size or pipeline_parallel_size, or choose another device.",
                field="data_parallel_size",
            )

    def worker(self, settings: WorkerSettings) -> WorkerSettings:
        """Return a worker's settings with its part of the cores, unless the settings choose a number of threads."""
        if self._num_workers == 1 or self._gpus or settings.threads:
            return settings
        return replaced(settings, threads=max(1, usable_cores() // self._num_workers))

    def engine_core(self, settings: EngineCoreSettings) -> EngineCoreSettings:
        """Return an engine core's settings. Workers without GPUs measure the same free memory, so each uses only its part."""
        if self._num_workers == 1 or self._gpus:
            return settings
        return replaced(settings, gpu_memory_utilization=settings.gpu_memory_utilization / self._num_workers)

    def environment(self, number: int) -> Mapping[str, str]:
        """Return the environment variables of worker `number`, counted from 0: they choose its GPU."""
        return {_VISIBLE: self._gpus[number]} if self._gpus and self._num_workers > 1 else {}


def _gpus() -> tuple[str, ...]:
    """Return the names of the GPUs that this process may use, in the form of CUDA_VISIBLE_DEVICES.

    CUDA ignores the names from the first negative number on: -1 hides all GPUs.
    """
    visible = os.environ.get(_VISIBLE)
    if visible is not None:
        names = (name.strip() for name in visible.split(","))
        return tuple(takewhile(lambda name: not name.startswith("-"), filter(None, names)))
    return tuple(str(number) for number in range(len(list(Path("/dev").glob("nvidia[0-9]*")))))
