"""A whole cluster in one event loop: two frontends, two engine cores with a simulated worker each, two tokenizers.

Messages go over the direct carrier, so services end and come back within milliseconds, and a seed decides on the order of
events.
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.service import serve as serve_engine_core
from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.services.direct.carrier import DirectCarrier
from tetrad.tokenizer_svc.config import TokenizerSettings
from tetrad.tokenizer_svc.service import serve as serve_tokenizer
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.service import serve as serve_worker

NUM_EACH = 2
_AT_ONCE: dict[str, Any] = {"withdrawal_wait_s": 0.0, "drain_timeout_s": 0.0, "reflection": False}


@dataclass
class Service:
    """One service: `run` serves its settings until the event is set."""

    run: Any
    settings: Any
    carrier: DirectCarrier
    shutdown: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.shutdown = asyncio.Event()
        self.task = asyncio.create_task(self.run(self.settings, self.shutdown, carrier=self.carrier))

    async def stop(self) -> None:
        """End it, and with it all of its calls."""
        self.shutdown.set()
        if self.task is not None:
            await self.task

    async def restart(self) -> None:
        await self.stop()
        self.start()


class Cluster:
    """The services; `frontends` take requests."""

    def __init__(self, model: str) -> None:
        carrier, places = DirectCarrier(), range(NUM_EACH)
        tokenizers, engine_cores = ([f"{kind}:{place}" for place in places] for kind in ("tokenizer", "engine-core"))
        self.tokenizers = [
            Service(serve_tokenizer, TokenizerSettings(**_AT_ONCE, model=model, listen=each), carrier) for each in tokenizers
        ]
        worker = {**_AT_ONCE, "device": "sim", "sim_seconds_per_step": 0.001}
        self.workers = [Service(serve_worker, WorkerSettings(**worker, listen=f"worker:{i}"), carrier) for i in places]
        engine_core = {**_AT_ONCE, "model": model, "num_gpu_blocks_override": 40, "max_num_seqs": 8}
        self.engine_cores = [
            Service(
                serve_engine_core,
                EngineCoreSettings(
                    **engine_core,
                    listen=f"engine-core:{i}",
                    admin_listen=f"admin:{i}",
                    worker_target=f"worker:{i}",
                    tokenizer_targets=tokenizers,
                ),
                carrier,
            )
            for i in places
        ]
        settings = FrontendSettings(
            tokenizer_targets=tokenizers, engine_targets=engine_cores, engine_admin_targets=[f"admin:{i}" for i in places]
        )
        self.frontends = [AsyncLLM(settings, carrier) for _ in places]
        self._exits = AsyncExitStack()

    async def __aenter__(self) -> "Cluster":
        for service in (*self.tokenizers, *self.workers, *self.engine_cores):
            service.start()
            self._exits.push_async_callback(service.stop)
        for frontend in self.frontends:
            await self._exits.enter_async_context(frontend)
            await frontend.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exits.aclose()

    async def loads(self) -> list[float]:
        """Return the share of KV blocks in use of each engine core that says so."""
        loads = await self.frontends[0].engine_admin.loads_known()
        return [1.0 if load is None else load.scheduler.kv_cache_usage for load in loads]
