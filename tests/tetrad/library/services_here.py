"""ServicesHere: the services of an LLM in this process and over gRPC, ready in a fraction of the time of a stack of processes.

For tests of what the classes do with a model of their own. That they start processes is shown by tests of the same files, and
is the same for every model.
"""

import asyncio
import tempfile
import threading
from pathlib import Path

from tetrad.frontend.config import FrontendSettings
from tetrad.library.engine_args import EngineArgs
from tetrad.library.llm_services import RemoteServices
from tetrad.services.rpc.carrier import GRPC
from tetrad.services.settings import replaced
from tetrad.stack.one_process import OneProcessSettings, running
from tetrad.stack.stack_settings import StackSettings

_AT_ONCE = {"withdrawal_wait_s": 0.0, "drain_timeout_s": 0.0}


class ServicesHere:
    """Services in the event loop of their caller. Stands in for LocalServices."""

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
