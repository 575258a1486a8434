"""Exchange: the state of one call of the direct carrier that client and server share.

It has a pipe for each direction, a deadline and finally one status. The client's side is a call (calls.py), the server's side a
context (context.py). The first of these events ends the call: the handler's return or error, the client's cancellation, the
deadline, or the server's stop. Messages that a handler wrote before it returned can still be read; any other end drops them.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import grpc

from tetrad.services.direct.pipe import Pipe

Metadata = Sequence[tuple[str, str | bytes]]


class Status(NamedTuple):
    """The status of a call; the trailing metadata may contain a google.rpc.Status, as with gRPC."""

    code: grpc.StatusCode
    details: str = ""
    trailing_metadata: Metadata = ()


class Exchange:
    """The state of one call.

    Args:
        method: "/package.Service/Method".
        metadata: metadata from the client.
        timeout_s: seconds until the call ends with DEADLINE_EXCEEDED; None: no limit.

    Attributes:
        requests: messages from the client; closed after the last one.
        responses: messages from the server.
        begun: set when a server has accepted the call, or the call has ended.
        status: None while the call runs.
        is_cancelled: whether the client has cancelled the call.
    """

    def __init__(self, method: str, metadata: Metadata, timeout_s: float | None) -> None:
        self.method, self.metadata = method, metadata
        self.requests, self.responses = Pipe(), Pipe()
        self.begun = asyncio.Event()
        self.status: Status | None = None
        self.is_cancelled = False
        self._tasks: list[asyncio.Task[None]] = []
        self._on_end: list[Callable[[], None]] = []
        self._deadline: asyncio.TimerHandle | None = None
        if timeout_s is not None:
            late = Status(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
            self._deadline = asyncio.get_running_loop().call_later(timeout_s, self.cut, late)

    @property
    def time_remaining_s(self) -> float | None:
        """The seconds until the deadline; None: there is none."""
        return None if self._deadline is None else max(0.0, self._deadline.when() - asyncio.get_running_loop().time())

    def own(self, task: asyncio.Task[None]) -> None:
        """Register a task that is cancelled when the call is cut."""
        self._tasks.append(task)

    def on_end(self, callback: Callable[[], None]) -> None:
        """Register a callback, called once when the call has ended."""
        self._on_end.append(callback)

    def end(self, status: Status) -> None:
        """End the call, unless it has ended; responses that were written can still be read."""
        if self.status is not None:
            return
        self.status = status
        if self._deadline is not None:
            self._deadline.cancel()
        self.requests.cut()
        self.responses.close()
        self.begun.set()
        for callback in self._on_end:
            callback()

    def cut(self, status: Status) -> None:
        """End the call at once: cancel its handler and drop unread messages.

        A call that has ended keeps its status, so its messages can still be read, unless the client has cancelled it.
        """
        if self.status is not None and not self.is_cancelled:
            return
        self.end(status)
        self.responses.cut()
        for task in self._tasks:
            task.cancel()

    def cancel(self) -> bool:
        """End the call for the client; return whether it was still running."""
        if self.status is not None and self.responses.is_drained:
            return False
        self.is_cancelled = True
        self.cut(Status(grpc.StatusCode.CANCELLED, "Locally cancelled by application!"))
        return True

    def check(self) -> None:
        """Raise the client's error of an ended call: CancelledError if the client cancelled it, AioRpcError if not OK."""
        assert self.status is not None
        if self.is_cancelled:
            raise asyncio.CancelledError
        if self.status.code is not grpc.StatusCode.OK:
            raise self.error()

    def error(self) -> grpc.aio.AioRpcError:
        """Return the error for a call whose status is not OK."""
        assert self.status is not None
        trailing: Any = grpc.aio.Metadata(*self.status.trailing_metadata)
        return grpc.aio.AioRpcError(self.status.code, grpc.aio.Metadata(), trailing, self.status.details)
