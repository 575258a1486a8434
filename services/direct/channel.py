"""DirectChannel: the channel interface of generated stubs, for a server in the same process and event loop.

Serializers are not called: messages are passed by reference. A channel keeps the server that it has found; when the server is
stopped, the channel reports the loss, and the next call or connection attempt finds the next server at the same address.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import grpc

from tetrad.services.direct.addresses import Acceptor, Addresses
from tetrad.services.direct.calls import StreamCall, UnaryCall
from tetrad.services.direct.exchange import Exchange, Metadata, Status


class DirectChannel(grpc.aio.Channel):  # type: ignore[misc] # grpc ships no types
    """A channel to a server of this process, without a connection.

    Args:
        addresses: registry of the servers of this process.
        target: address of the server.
    """

    def __init__(self, addresses: Addresses, target: str) -> None:
        self._addresses, self._target = addresses, target
        self._server: Acceptor | None = None
        self._exchanges: set[Exchange] = set()
        self._is_closed = False

    def unary_unary(self, method: str, *_: Any, **__: Any) -> Callable[..., UnaryCall]:
        """Return a callable that starts calls of a method."""
        return lambda request, **options: UnaryCall(self._start(method, request, **options))

    def unary_stream(self, method: str, *_: Any, **__: Any) -> Callable[..., StreamCall]:
        """Return a callable that starts calls of a method."""
        return lambda request, **options: StreamCall(self._start(method, request, **options))

    def stream_unary(self, method: str, *_: Any, **__: Any) -> Callable[..., Any]:
        """Raise NotImplementedError: no service of Tetrad has such a method."""
        raise NotImplementedError(f"{method}: the direct carrier has no calls of many requests and one response.")

    def stream_stream(self, method: str, *_: Any, **__: Any) -> Callable[..., StreamCall]:
        """Return a callable that starts calls of a method."""
        return lambda **options: StreamCall(self._start(method, None, **options))

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Return READY while the server accepts calls, otherwise TRANSIENT_FAILURE; SHUTDOWN after `close`."""
        if self._is_closed:
            return grpc.ChannelConnectivity.SHUTDOWN
        if try_to_connect:
            self._attach()
        return grpc.ChannelConnectivity.READY if self._is_attached() else grpc.ChannelConnectivity.TRANSIENT_FAILURE

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Wait until the channel is in another state, or a connection attempt may succeed."""
        while self.get_state() is last_observed_state:
            await self._addresses.wait_change()
            if last_observed_state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                return  # the caller then tries to connect again

    async def channel_ready(self) -> None:
        """Wait until the server accepts calls."""
        while not self._attach():
            await self._addresses.wait_change()

    async def close(self, *_: object) -> None:
        """End all calls."""
        self._is_closed = True
        for exchange in list(self._exchanges):
            exchange.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _is_attached(self) -> bool:
        return self._server is not None and self._server.is_serving

    def _attach(self) -> bool:
        """Find the server; return whether it accepts calls."""
        if not self._is_attached():
            self._server = self._addresses.find(self._target)
        return self._is_attached()

    def _start(
        self,
        method: str,
        request: Any,
        *,
        timeout: float | None = None,
        metadata: Metadata | None = None,
        wait_for_ready: bool = False,
    ) -> Exchange:
        """Begin a call; `request` is None if the client streams."""
        if self._is_closed:
            raise grpc.aio.UsageError("Channel is closed.")
        exchange = Exchange(method, tuple(metadata or ()), timeout)
        self._exchanges.add(exchange)
        exchange.on_end(lambda: self._exchanges.discard(exchange))
        if request is not None:
            exchange.requests.fill(request)
        if self._attach() and self._server is not None:
            self._server.accept(exchange)
        elif wait_for_ready:
            exchange.own(asyncio.create_task(self._accept_when_ready(exchange)))
        else:
            exchange.end(Status(grpc.StatusCode.UNAVAILABLE, f"No server of this process is at {self._target}."))
        return exchange

    async def _accept_when_ready(self, exchange: Exchange) -> None:
        await self.channel_ready()
        assert self._server is not None
        self._server.accept(exchange)
