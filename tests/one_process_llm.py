"""An LLM whose services run in the test's process, over gRPC: it starts in 0.3 s of CPU time, a stack of processes in 4 s.

For tests of what the library and a model of the test's own compute. Services in this process cannot be killed.
"""

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tetrad import LLM
from tetrad.frontend.config import FrontendSettings
from tetrad.library import async_llm, llm_arguments, llm_engine
from tetrad.library.engine_args import EngineArgs
from tetrad.library.llm_services import RemoteServices
from tetrad.services.rpc.carrier import GRPC
from tetrad.services.settings import replaced
from tetrad.stack.one_process import OneProcessSettings, running
from tetrad.stack.stack_settings import StackSettings

_AT_ONCE = {"withdrawal_wait_s": 0.0, "drain_timeout_s": 0.0}


class ServicesHere:
    """Services in the event loop of their caller. It takes the place of LocalServices."""

    def __init__(self, args: EngineArgs) -> None:
        self._args = args
        self._end = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended = threading.Event()

    async def start(self) -> FrontendSettings:
        """Run the services of the arguments; return when they accept requests."""
        self._loop = asyncio.get_running_loop()
        settings = await asyncio.to_thread(self._args.stack_settings)
        started: asyncio.Future[FrontendSettings] = self._loop.create_future()
        self._task = asyncio.create_task(self._run(settings, started))
        await asyncio.wait({self._task, started}, return_when=asyncio.FIRST_COMPLETED)
        return started.result() if started.done() else self._task.result()

    async def close(self) -> None:
        """End the services."""
        self._end.set()
        if self._task is not None:
            await self._task

    def abandon(self) -> None:
        """Let the services end. May be called on any thread."""
        if self._loop is not None and not self._ended.is_set():
            self._loop.call_soon_threadsafe(self._end.set)

    def wait_ended(self, timeout_s: float) -> bool:
        """Return whether services that were started have ended; called on another thread than theirs."""
        return self._task is None or self._ended.wait(timeout_s)

    async def _run(self, settings: StackSettings, started: "asyncio.Future[FrontendSettings]") -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as directory:
                here = _with_addresses(settings, Path(directory))
                async with running(here, GRPC):
                    started.set_result(await RemoteServices(directory, **settings.frontend.model_dump()).start())
                    await self._end.wait()
        finally:
            self._ended.set()


def _with_addresses(settings: StackSettings, directory: Path) -> OneProcessSettings:
    tokenizer, worker, core, admin = (
        f"unix:{directory}/{name}.sock" for name in ("tokenizer", "worker", "engine-core", "engine-core-admin")
    )
    of_core = {"listen": core, "admin_listen": admin, "worker_target": worker, "tokenizer_targets": (tokenizer,)}
    targets = {"tokenizer_targets": (tokenizer,), "engine_targets": (core,), "engine_admin_targets": (admin,)}
    return OneProcessSettings(
        replaced(settings.tokenizer, listen=tokenizer, **_AT_ONCE),
        replaced(settings.worker, listen=worker, **_AT_ONCE),
        replaced(settings.engine_core, **of_core, **_AT_ONCE),
        replaced(settings.frontend, **targets),
    )


@contextlib.contextmanager
def services_in_process() -> Iterator[None]:
    """Run the services of each LLM that is made in this process, and end those of an LLM that is not closed."""
    made: list[ServicesHere] = []

    def make(args: EngineArgs) -> ServicesHere:
        made.append(ServicesHere(args))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        for module in (async_llm, llm_arguments, llm_engine):
            patch.setattr(module, "LocalServices", make)
        yield
    for services in made:
        services.abandon()
    assert all(services.wait_ended(timeout_s=30) for services in made)


@contextlib.contextmanager
def one_process_llm(model: Path | str, **options: object) -> Iterator[LLM]:
    """Yield an LLM of a model on one thread of the CPU; its services end behind it."""
    with services_in_process(), LLM(str(model), **({"device": "cpu", "threads": 1} | options)) as llm:
        yield llm
