"""Runs of a loaded encoder in the test's process."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from tests.worker_svc.pooling.checkpoints import VOCAB_SIZE
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import KvLayout, LoadedModel, LoadRequest
from tetrad.worker_svc.core.plan import CachedRequests, NewRequest, SamplingSpec, SchedulerOutput
from tetrad.worker_svc.core.pooling import PoolingSpec
from tetrad.worker_svc.core.result import ModelRunnerOutput, finished
from tetrad.worker_svc.devices.cpu import CpuDevice

_NONE = np.empty(0, np.int64)
_NO_CACHED = CachedRequests(_NONE, _NONE, _NONE, _NONE, _NONE)


def load(directory: Path, **options: str) -> LoadedModel:
    """Return the model of a directory on the CPU device, with one thread: teams wait for each other on a busy machine."""
    return load_with(WorkerSettings(device="cpu", threads=1), directory, **options)


def load_with(settings: WorkerSettings, directory: Path, **options: str) -> LoadedModel:
    """Return the same on a device with settings of its own."""
    return CpuDevice(settings).load_model(LoadRequest("m", directory, **options), lambda *_: None)


def prompts_of(lengths: Iterable[int]) -> list[list[int]]:
    """Return a random prompt of each length."""
    random = np.random.default_rng(0)
    return [random.integers(4, VOCAB_SIZE, length).tolist() for length in lengths]


def plan_of(prompts: Sequence[Sequence[int]], specs: Sequence[PoolingSpec | None]) -> SchedulerOutput:
    """Return a step that computes whole prompts."""
    requests = [
        NewRequest(
            handle=handle,
            request_id=str(handle),
            token_ids=np.array(ids, np.int64),
            num_prompt_tokens=len(ids),
            num_computed_tokens=0,
            num_scheduled_tokens=len(ids),
            block_ids=_NONE,
            sampling=SamplingSpec(),
            pooling=spec,
        )
        for handle, (ids, spec) in enumerate(zip(prompts, specs, strict=True))
    ]
    return SchedulerOutput(0, requests, _NO_CACHED)


def run(model: LoadedModel, prompts: Sequence[Sequence[int]], *specs: PoolingSpec | None) -> ModelRunnerOutput:
    """Return the result of one step; one spec is that of all prompts."""
    runner = model.make_runner(KvLayout(1, 16, model.info.max_position_embeddings, 256, 1 << 20))
    return finished(runner.execute(plan_of(prompts, specs if len(specs) > 1 else specs * len(prompts))))
