"""Draining: refuses new requests of a model, waits for the running ones, and fails those that exceed a time limit.

Owned by AsyncLLM. When the server ends, it waits for requests. When a model is unloaded, it also waits for calls that use the
model before, between and after their requests, for example to render a chat. Used on one event loop.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from weakref import WeakSet

from tetrad.frontend.llm.readiness import Readiness, draining_error, starting_error, unloaded_error
from tetrad.frontend.llm.unfinished_requests import UnfinishedRequests
from tetrad.services.errors import Unavailable
from tetrad.services.log import get_logger

log = get_logger()

Inputs = TypeVar("Inputs")


class Draining:
    """The refusal of new requests for one model, and the end of running ones.

    Args:
        requests: the unfinished requests of the model.
        readiness: reports the shutdown from the first refusal on.

    Attributes:
        gate: refuses requests while it is closed.
        callers: the calls that `retire` waits for.
    """

    def __init__(self, requests: UnfinishedRequests, readiness: Readiness) -> None:
        self._requests, self._readiness = requests, readiness
        self.gate = Gate()
        self.callers = Callers()

    def withdraw(self) -> None:
        """Report unhealthy from now on, so that load balancers choose other servers; requests are still accepted."""
        self._readiness.note_draining()

    def start(self) -> None:
        """Refuse new requests from now on."""
        self._close_gate(draining_error)

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests, let running ones finish within `timeout_s`, and fail the rest with Unavailable."""
        self.start()
        await self._finish(self._requests.wait_idle(), timeout_s, draining_error)

    async def retire(self, timeout_s: float, model: str) -> None:
        """Let the calls that already use the model end within `timeout_s`, and fail the rest with Unavailable.

        Unlike `drain`, this lets such calls make requests until then. New calls must no longer be able to find the model.

        Args:
            timeout_s: the longest time in seconds.
            model: the model's name in the errors.
        """

        def make_error() -> Unavailable:
            return unloaded_error(model)

        await self._finish(self._wait_unused(), timeout_s, make_error)
        self._close_gate(make_error)

    def end(self) -> None:
        """Refuse new requests, and fail the running ones at once."""
        self.start()
        self._requests.fail_all(draining_error())

    async def _wait_unused(self) -> None:
        await self.callers.wait_done()
        await self._requests.wait_idle()

    async def _finish(self, ending: Coroutine[Any, Any, None], timeout_s: float, make_error: Callable[[], Unavailable]) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await ending
        except TimeoutError:
            log.warning("frontend.drain_timed_out", num_failed=len(self._requests), timeout_s=timeout_s)
            self._close_gate(make_error)
            self._requests.fail_all(make_error())

    def _close_gate(self, make_error: Callable[[], Unavailable]) -> None:
        self.gate.close(make_error)
        self._readiness.note_draining()


class Gate:
    """Whether requests are accepted: not before the model is known, and not after the gate was closed."""

    def __init__(self) -> None:
        self._make_error: Callable[[], Unavailable] | None = None

    def close(self, make_error: Callable[[], Unavailable]) -> None:
        """Refuse all further requests, also those in preparation, with the error that the first `make_error` returns."""
        self._make_error = self._make_error or make_error

    def check_open(self) -> None:
        """Raise Unavailable if the gate was closed."""
        if self._make_error is not None:
            raise self._make_error()

    def required(self, inputs: Inputs | None) -> Inputs:
        """Return `inputs`; raise Unavailable if it is None (before the start) or if the gate was closed."""
        self.check_open()
        if inputs is None:
            raise starting_error()
        return inputs


class Callers:
    """The tasks of the calls that use one model; each HTTP or gRPC call is an asyncio task."""

    def __init__(self) -> None:
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()

    def note(self) -> None:
        """Add the current task."""
        if (task := asyncio.current_task()) is not None:
            self._tasks.add(task)

    async def wait_done(self) -> None:
        """Wait until every noted task has ended."""
        while tasks := [task for task in self._tasks if not task.done()]:
            await asyncio.wait(tasks)
