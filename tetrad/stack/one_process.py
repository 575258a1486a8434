"""Runs all four services in this process and event loop, over any carrier: for tests, simulations and a split benchmark.

Over the direct carrier (services/direct) no message leaves the process; over gRPC the same program uses Unix sockets. Each
service runs its own `serve`, as it does in a separate process; the worker keeps its compute thread. Not for production: the
services share one interpreter, so only one of them computes at a time, and they end together.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.service import serve as serve_engine_core
from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.services.rpc.carrier import Carrier
from tetrad.tokenizer_svc.config import TokenizerSettings
from tetrad.tokenizer_svc.service import serve as serve_tokenizer
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.service import serve as serve_worker

_COMMON: dict[str, Any] = {"withdrawal_wait_s": 0.0, "drain_timeout_s": 0.0, "reflection": False}
Fields = Mapping[str, Any]


@dataclass(frozen=True)
class OneProcessSettings:
    """The settings of each service, with the addresses at which they find each other."""

    tokenizer: TokenizerSettings
    worker: WorkerSettings
    engine_core: EngineCoreSettings
    frontend: FrontendSettings

    @classmethod
    def of(cls, model: str, addresses: str, *, worker: Fields, engine_core: Fields, frontend: Fields | None = None) -> Self:
        """Return the settings of one service of each kind.

        Args:
            model: a built-in name, a directory or a .gguf file.
            addresses: the prefix of their addresses: "unix:/directory" for gRPC, any text for the direct carrier.
            worker, engine_core, frontend: additional settings of these services.
        """
        names = ("tokenizer", "worker", "engine-core", "admin")
        at_tokenizer, at_worker, at_engine_core, at_admin = (f"{addresses}/{name}.sock" for name in names)
        cores: dict[str, Any] = {"listen": at_engine_core, "admin_listen": at_admin, "worker_target": at_worker}
        targets: dict[str, Any] = {"engine_targets": (at_engine_core,), "engine_admin_targets": (at_admin,)}
        return cls(
            TokenizerSettings(**_COMMON, model=model, listen=at_tokenizer),
            WorkerSettings(**_COMMON, listen=at_worker, **worker),
            EngineCoreSettings(**_COMMON, model=model, tokenizer_targets=(at_tokenizer,), **cores, **engine_core),
            FrontendSettings(tokenizer_targets=(at_tokenizer,), **targets, **(frontend or {})),
        )


@contextlib.asynccontextmanager
async def running(settings: OneProcessSettings, carrier: Carrier) -> AsyncIterator[AsyncLLM]:
    """Run the services; yield the frontend's AsyncLLM when they accept requests.

    Raises an ExceptionGroup with the error of a service that cannot be run.
    """
    shutdown = asyncio.Event()
    async with asyncio.TaskGroup() as services:
        services.create_task(serve_tokenizer(settings.tokenizer, shutdown, carrier=carrier))
        services.create_task(serve_worker(settings.worker, shutdown, carrier=carrier))
        services.create_task(serve_engine_core(settings.engine_core, shutdown, carrier=carrier))
        try:
            async with await AsyncLLM.connect(settings.frontend, carrier) as llm:
                yield llm
        finally:
            shutdown.set()
