"""Call metrics: counts and times the calls of a gRPC server, by method and status.

One interceptor for every server, the outermost, so that it sees the statuses that callers get. The names are those of gRPC's
interceptors in other languages, so their dashboards work for Tetrad, too. A stream counts once, with any number of messages.
"""

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self

import grpc
from prometheus_client import Counter, Histogram

from tetrad.services.observability.metrics import PROCESS
from tetrad.services.rpc.handlers import WrappingInterceptor, behavior_of, shape_of, with_behavior

_LABELS = ("grpc_type", "grpc_service", "grpc_method")
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 600)
_STARTED = Counter("grpc_server_started", "Calls that began.", _LABELS, registry=PROCESS)
_HANDLED = Counter("grpc_server_handled", "Calls that ended, by status.", (*_LABELS, "grpc_code"), registry=PROCESS)
_HANDLING = Histogram("grpc_server_handling_seconds", "Begin to end of a call.", _LABELS, buckets=_SECONDS, registry=PROCESS)
_TYPES = {
    "unary_unary": "unary",
    "stream_unary": "client_stream",
    "unary_stream": "server_stream",
    "stream_stream": "bidi_stream",
}
_STREAMED_TO = ("client_stream", "bidi_stream")
_ARRIVAL_S = 0.05
"""Tolerance of deadlines, in seconds: the caller's deadline is earlier than ours by the time that the call took to arrive."""


class CallMetrics(WrappingInterceptor):
    """Counts every call of a method that the server has."""

    def wrap(self, handler: grpc.RpcMethodHandler, method: str) -> grpc.RpcMethodHandler:
        """Return a handler that counts its calls."""
        behavior = behavior_of(handler)
        wrap = _wrap_generator if inspect.isasyncgenfunction(behavior) else _wrap_coroutine
        return with_behavior(handler, wrap(behavior, _Method(_TYPES[shape_of(handler)], method)))


class _Method:
    """The counts of one method; `kind` as in _TYPES."""

    def __init__(self, kind: str, method: str) -> None:
        self.labels = kind, *method.split("/", 2)[1:]
        self.is_streamed_to = kind in _STREAMED_TO
        self.started = _STARTED.labels(*self.labels)
        self.handling = _HANDLING.labels(*self.labels)


class _Messages:
    """The messages of a caller's stream. `have_ended`: whether all of them were read."""

    def __init__(self, messages: AsyncIterator[Any]) -> None:
        self._messages = messages
        self.have_ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await anext(self._messages)
        except StopAsyncIteration:
            self.have_ended = True
            raise


class _Call:
    """One running call. `request`: the request for its handler."""

    def __init__(self, method: _Method, request: Any, context: grpc.aio.ServicerContext) -> None:
        self._method, self._context, self._started = method, context, time.perf_counter()
        self.request = _Messages(request) if method.is_streamed_to else request
        method.started.inc()

    async def hear_of_cut(self) -> None:
        """Raise CancelledError if the caller has cut the stream, which at first looks like the end of its messages."""
        if isinstance(self.request, _Messages) and self.request.have_ended:
            # This read returns at the end of the call, after all earlier events that gRPC reports.
            await self._context.read()

    def end(self, error: BaseException | None) -> None:
        self._method.handling.observe(time.perf_counter() - self._started)
        _HANDLED.labels(*self._method.labels, self._code(error)).inc()

    def _code(self, error: BaseException | None) -> str:
        if error is None:
            return "OK"
        if isinstance(error, (asyncio.CancelledError, GeneratorExit)):
            left_s = self._context.time_remaining()
            return "CANCELLED" if left_s is None or left_s > _ARRIVAL_S else "DEADLINE_EXCEEDED"
        code = self._context.code()
        return code.name if isinstance(code, grpc.StatusCode) else "UNKNOWN"


def _wrap_coroutine(behavior: Callable[..., Awaitable[Any]], method: _Method) -> Callable[..., Awaitable[Any]]:
    async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
        counted = _Call(method, request, context)
        try:
            response = await behavior(counted.request, context)
            await counted.hear_of_cut()
        except BaseException as error:
            counted.end(error)
            raise
        counted.end(None)
        return response

    return call


def _wrap_generator(behavior: Callable[..., AsyncIterator[Any]], method: _Method) -> Callable[..., AsyncIterator[Any]]:
    async def call(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        counted = _Call(method, request, context)
        try:
            async for response in behavior(counted.request, context):
                yield response
            await counted.hear_of_cut()
        except BaseException as error:
            counted.end(error)
            raise
        counted.end(None)

    return call
