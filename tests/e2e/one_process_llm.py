"""An LLM whose services run on its own event loop, in the test's process.

For tests of what a model computes. A stack of processes starts in 4 s of CPU time, most of it imports; this one in 0.3 s. Its
services cannot be killed.
"""

import asyncio
import functools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tetrad import LLM, AsyncLLM
from tetrad.frontend.config import FrontendSettings
from tetrad.library import llm as library
from tetrad.services.rpc.carrier import GrpcCarrier
from tetrad.stack.one_process import Fields, OneProcessSettings, running


class OneProcessServices:
    """The services of an LLM on the event loop that starts them, over Unix sockets."""

    def __init__(self, settings: OneProcessSettings) -> None:
        self._settings = settings
        self._stop = asyncio.Event()

    async def start(self) -> FrontendSettings:
        """Return the frontend settings when the services accept requests, or raise why they cannot."""
        started = asyncio.Event()
        self._task = asyncio.create_task(self._run(started))
        waiting = asyncio.create_task(started.wait())
        await asyncio.wait((self._task, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._task.done():
            self._task.result()
        return self._settings.frontend

    async def close(self) -> None:
        """Stop the services."""
        self._stop.set()
        await asyncio.wait((self._task,))

    def abandon(self) -> None:
        """Stop the services without waiting."""
        self._stop.set()

    async def _run(self, started: asyncio.Event) -> None:
        async with running(self._settings, GrpcCarrier()):
            started.set()
            await self._stop.wait()


@contextmanager
def one_process_llm(model: Path | str, *, worker: Fields | None = None, **engine_core: object) -> Iterator[LLM]:
    """Yield an LLM of a model on the CPU, with settings of its worker and of its engine core; the services end behind it."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as directory:
        device = {"device": "cpu", "threads": 1} | dict(worker or {})
        settings = OneProcessSettings.of(str(model), f"unix:{directory}", worker=device, engine_core=engine_core)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(library, "make_llm", lambda *_: functools.partial(AsyncLLM, OneProcessServices(settings)))
            llm = LLM(str(model))
        with llm:
            yield llm
