"""Calls: the client's side of an exchange, with the methods and errors of grpc.aio's calls that clients use.

A client for gRPC works with these calls: errors are grpc.aio.AioRpcError with the server's status details; the end of a stream
is grpc.aio.EOF; reading a call that this process cancelled raises CancelledError; writing to a call that has ended raises
InvalidStateError; a task that is cancelled while it waits for a call cancels the call.
"""

import asyncio
from collections.abc import AsyncIterator, Generator
from typing import Any

import grpc

from tetrad.services.direct.exchange import Exchange
from tetrad.services.direct.pipe import PipeClosedError


class _Call:
    """The common part of all calls."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def cancel(self) -> bool:
        """End the call; return whether it was still running."""
        return self._exchange.cancel()

    async def _next(self) -> Any:
        """Return the next response; EOF after the last one of a successful call."""
        try:
            message = await self._exchange.responses.get()
        except asyncio.CancelledError:
            self._exchange.cancel()
            raise
        if message is grpc.aio.EOF:
            self._exchange.check()
        return message


class UnaryCall(_Call):
    """A call with one response, which `await` returns."""

    def __await__(self) -> Generator[Any, None, Any]:
        """Return the response. Raises AioRpcError if there is none."""
        return self._next().__await__()


class StreamCall(_Call):
    """A call with any number of responses; if the client streams, it also has `write` and `done_writing`."""

    async def read(self) -> Any:
        """Return the next response, or grpc.aio.EOF. Raises AioRpcError or CancelledError."""
        return await self._next()

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Yield the responses. Raises AioRpcError or CancelledError."""
        while (message := await self._next()) is not grpc.aio.EOF:
            yield message

    async def write(self, message: Any) -> None:
        """Send a message, once a server has accepted the call and has room for it."""
        exchange = self._exchange
        if exchange.status is not None and exchange.responses.is_drained:
            raise asyncio.InvalidStateError("RPC already finished.")
        try:
            await exchange.begun.wait()
            await exchange.requests.put(message)
        except PipeClosedError:
            if exchange.status is None:
                raise asyncio.InvalidStateError('RPC is half closed after calling "done_writing".') from None
            exchange.check()
        except asyncio.CancelledError:
            exchange.cancel()
            raise

    async def done_writing(self) -> None:
        """End the client's messages."""
        self._exchange.requests.close()
