"""Slow calls: ends a streaming call, and its request, when the client reads no message for too long.

gRPC delays a write without limit while the client's flow-control window is full. Meanwhile the request's collector merges
further outputs. The delayed write is in the call's context, not in the handler: so this is an interceptor, inside the one that
maps errors, and writes the messages itself. Knows no messages.
"""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

import grpc

from tetrad.services.errors import DeadlineExceeded
from tetrad.services.log import get_logger
from tetrad.services.rpc.handlers import WrappingInterceptor, behavior_of, with_behavior
from tetrad.services.timers.idle_timer import IdleTimer

log = get_logger()


class EndSlowCalls(WrappingInterceptor):
    """Raises DeadlineExceeded in calls whose client does not read, for handlers that are async generators.

    The client receives the error after the unread messages; until then the call stays open in the connection.

    Args:
        timeout_s: maximum seconds that a message waits for the client.
    """

    def __init__(self, timeout_s: float) -> None:
        super().__init__()
        self._timeout_s = timeout_s

    def wrap(self, handler: grpc.RpcMethodHandler, method: str) -> grpc.RpcMethodHandler:  # noqa: ARG002 - the interface
        """Return the handler, wrapped if it is an async generator."""
        behavior = behavior_of(handler)
        return with_behavior(handler, self._wrap(behavior)) if inspect.isasyncgenfunction(behavior) else handler

    def _wrap(self, behavior: Callable[..., AsyncGenerator[Any, None]]) -> Callable[..., Awaitable[None]]:
        async def call(request: Any, context: grpc.aio.ServicerContext) -> None:
            async with aclosing(behavior(request, context)) as messages:
                with _Writer(context, self._timeout_s) as writer:
                    async for message in messages:
                        await writer.write(message)

        return call


class _Writer:
    """Writes the messages of one call; a context manager around all writes, made in the call's task."""

    def __init__(self, context: grpc.aio.ServicerContext, timeout_s: float) -> None:
        self._context = context
        self._timeout_s = timeout_s
        self._handler = asyncio.current_task()
        self._timer = IdleTimer(timeout_s, self._on_idle)
        self._has_begun = self._is_writing = self._is_late = False

    async def write(self, message: Any) -> None:
        """Write a message when the client's window has room; DeadlineExceeded if this takes too long."""
        if not self._has_begun:
            self._has_begun = True
            # Metadata is sent separately: with a delayed first message, gRPC could not send a status otherwise.
            with contextlib.suppress(grpc.aio.UsageError):  # the handler has sent it
                await self._context.send_initial_metadata(())
        self._timer.note()
        self._is_writing = True
        try:
            await self._context.write(message)
        except asyncio.CancelledError:
            if not self._is_late or self._handler is None or self._handler.uncancel():
                raise  # the client or the server has ended the call
            text = f"Nothing of the answer was taken for {self._timeout_s:g} s (slow_client_timeout_s); read it faster."
            raise DeadlineExceeded(text, reason="SLOW_CLIENT") from None
        finally:
            self._is_writing = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._timer.stop()

    def _on_idle(self) -> None:
        if self._is_writing and self._handler is not None:
            log.info("grpc.slow_client_dropped")
            self._is_late = True
            self._handler.cancel()
