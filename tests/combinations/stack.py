"""The services of a walk in the test's process: several engine cores with several workers each, any of which may be killed."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.simulation.cluster import Service
from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.service import serve as serve_engine_core
from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.services.direct.carrier import DirectCarrier
from tetrad.tokenizer_svc.config import TokenizerSettings
from tetrad.tokenizer_svc.service import serve as serve_tokenizer
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.service import serve as serve_worker

_COMMON: dict[str, Any] = {"withdrawal_wait_s": 0.0, "drain_timeout_s": 0.0, "reflection": False}


@dataclass(frozen=True)
class Sizes:
    """The numbers of services.

    Attributes:
        engine_cores: each with its own workers.
        prefill_cores: number of them, the last ones, that compute prompts for the others.
        shards, stages: of the model, on one worker each.
        tokenizers: of the frontend; engine cores ask the first one.
        shares_experts: whether each worker has a part of the experts, for all of them.
    """

    engine_cores: int = 1
    prefill_cores: int = 0
    shards: int = 1
    stages: int = 1
    tokenizers: int = 1
    shares_experts: bool = False


ONE_OF_EACH = Sizes()


@dataclass(frozen=True)
class Stack:
    """Running services, and what takes their requests."""

    llm: AsyncLLM
    tokenizers: list[Service]
    workers: list[Service]
    engine_cores: list[Service]

    async def kill(self, rng: random.Random) -> str:
        """End a service in the midst of what it does, and start another one; return what it was."""
        kind = rng.choice(["tokenizer", "worker", "engine core"])
        if kind != "engine core":  # they drain nothing
            await rng.choice(self.tokenizers if kind == "tokenizer" else self.workers).restart()
            return kind
        core = rng.choice(self.engine_cores)
        assert core.task is not None
        core.task.cancel()
        await asyncio.gather(core.task, return_exceptions=True)
        if len(self.engine_cores) > 1 and rng.random() < 0.5:
            # Longer than the frontend waits before another engine core continues its requests.
            await asyncio.sleep(1.3)
            kind = "engine core, for long"
        core.start()
        return kind


@asynccontextmanager
async def running_stack(
    model: Path,
    directory: Path,
    sizes: Sizes,
    *,
    frontend: Mapping[str, Any],
    worker: Mapping[str, Any],
    engine_core: Mapping[str, Any],
) -> AsyncIterator[Stack]:
    """Run the services; each of them ends at once when it is stopped.

    Args:
        model: its directory.
        directory: where the ranks of a group meet.
        sizes: the numbers of services.
        frontend, worker, engine_core: the settings of each.
    """
    carrier, num_ranks = DirectCarrier(), sizes.shards * sizes.stages
    cores = range(sizes.engine_cores)
    tokenizers = tuple(f"unix:{directory}/tokenizer-{number}" for number in range(sizes.tokenizers))
    workers = [[f"unix:{directory}/worker-{core}-{rank}" for rank in range(num_ranks)] for core in cores]
    engine_cores = tuple(f"unix:{directory}/engine-core-{core}" for core in cores)
    groups: dict[str, Any] = {"tensor_parallel_size": sizes.shards, "pipeline_parallel_size": sizes.stages}
    groups["enable_expert_parallel"] = sizes.shares_experts
    experts = tuple(f"unix:{directory}/experts-{core}" for core in cores) if sizes.shares_experts else ()
    of_core = _COMMON | {"model": str(model), "tokenizer_targets": tokenizers[:1]} | groups | dict(engine_core)
    roles = ["consumer"] * (sizes.engine_cores - sizes.prefill_cores) + ["producer"] * sizes.prefill_cores
    of_worker = _COMMON | {"device": "cpu", "threads": 1} | dict(worker)
    stack_of = [
        [Service(serve_tokenizer, TokenizerSettings(**_COMMON, model=str(model), listen=each), carrier) for each in tokenizers],
        [
            Service(
                serve_worker,
                WorkerSettings(
                    **of_worker, listen=listen, rank=rank, expert_targets=experts, expert_index=core if experts else 0
                ),
                carrier,
            )
            for core, group in enumerate(workers)
            for rank, listen in enumerate(group)
        ],
        [
            Service(
                serve_engine_core,
                EngineCoreSettings(
                    **of_core,
                    listen=engine_cores[core],
                    admin_listen=f"{engine_cores[core]}-admin",
                    worker_target=",".join(workers[core]),
                    data_parallel_rank=core,
                    kv_role=roles[core] if sizes.prefill_cores else "none",
                    kv_peers=(f"unix:{directory}/*",),
                ),
                carrier,
            )
            for core in cores
        ],
    ]
    targets: dict[str, Any] = {
        "tokenizer_targets": tokenizers,
        "engine_targets": engine_cores,
        "engine_admin_targets": tuple(f"{each}-admin" for each in engine_cores),
    }
    async with AsyncExitStack() as exits:
        for services in stack_of:
            for service in services:
                service.start()
                exits.push_async_callback(service.stop)
        llm = await exits.enter_async_context(await AsyncLLM.connect(FrontendSettings(**targets, **frontend), carrier))
        yield Stack(llm, *stack_of)
