"""TlsChannel: a channel that uses the current identity of its process. Its interface is that of every channel.

Each call uses a connection with the latest certificates; connections with earlier ones are closed when their calls have ended.
A call that waits for a server that refuses the earlier certificates fails with UNAVAILABLE, so that its caller tries again.
Used on one event loop, like all channels.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from types import TracebackType
from typing import Any, Self

import grpc

from tetrad.services.log import get_logger
from tetrad.services.tls.identity import Identity, channel_credentials

log = get_logger()

# Interval in seconds at which the files are checked for changes, only while a server cannot be reached.
_LOOK_AGAIN_S = 1.0
_PROBE = "/grpc.health.v1.Health/Check"
_PROBE_TIMEOUT_S = 5.0
_NOBODY_THERE = "Connection refused"
_Shape = str


class TlsChannel(grpc.aio.Channel):  # type: ignore[misc] # grpc ships no types
    """A channel over TLS.

    Args:
        target: "host:port" or "dns:///name:port"; the server's certificate must have the name.
        options: options of every connection.
        identity: the certificate to present and the authorities to trust.
    """

    def __init__(self, target: str, options: Sequence[tuple[str, int | str]], identity: Identity) -> None:
        self._target = target
        self._options = options
        self._identity = identity
        self._connection: _Connection | None = None
        self._watching: asyncio.Task[None] | None = None
        self._retired: set[_Connection] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._said: set[str] = set()
        self.problem = ""
        """The reason why the server cannot be reached; empty while it can, or if the reason is unknown."""

    def call(self, shape: _Shape, method: str, options: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Start a call on the current connection."""
        connection = self._current()
        call = connection.callable(shape, method, options)(*args, **kwargs)
        connection.num_calls += 1
        call.add_done_callback(lambda _: self._on_done(connection))
        if not kwargs.get("wait_for_ready"):
            return call
        waiting = _WaitingCall(call, connection)
        connection.waiting.add(waiting)
        call.add_done_callback(lambda _: connection.waiting.discard(waiting))
        return waiting

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return a callable that starts calls of a method."""
        return self._callable("unary_unary", method, args, kwargs)

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return a callable that starts calls of a method."""
        return self._callable("unary_stream", method, args, kwargs)

    def stream_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return a callable that starts calls of a method."""
        return self._callable("stream_unary", method, args, kwargs)

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return a callable that starts calls of a method."""
        return self._callable("stream_stream", method, args, kwargs)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Return the state of the current connection."""
        return self._current().channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Wait until the current connection is in another state or is replaced."""
        connection = self._current()
        waits = (connection.channel.wait_for_state_change(last_observed_state), connection.replaced.wait())
        tasks = [asyncio.ensure_future(wait) for wait in waits]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def channel_ready(self) -> None:
        """Wait until the current connection is established."""
        await self._current().channel.channel_ready()

    async def close(self, grace: float | None = None) -> None:
        """Close all connections; calls get `grace` seconds to end."""
        connections = [*self._retired, *([] if self._connection is None else [self._connection])]
        self._retired.clear()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await asyncio.gather(*self._closing, *(connection.channel.close(grace) for connection in connections))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _callable(self, shape: _Shape, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        options = dict(zip(("request_serializer", "response_deserializer"), args, strict=False)) | kwargs
        return lambda *args, **kwargs: self.call(shape, method, options, args, kwargs)

    def _current(self) -> "_Connection":
        material = self._identity.current()
        if self._connection is None or self._connection.revision != material.revision:
            retired, self._connection = (
                self._connection,
                _Connection(
                    grpc.aio.secure_channel(self._target, channel_credentials(material), options=self._options),
                    material.revision,
                ),
            )
            if retired is not None:
                retired.replaced.set()
                self._retired.add(retired)
                self._close_if_done(retired)
            if self._watching is not None:
                self._watching.cancel()
            self._watching = asyncio.create_task(self._watch(self._connection), name=f"tls {self._target}")
        return self._connection

    def _on_done(self, connection: "_Connection") -> None:
        connection.num_calls -= 1
        self._close_if_done(connection)

    def _close_if_done(self, connection: "_Connection") -> None:
        if connection.num_calls == 0 and connection in self._retired:
            self._retired.discard(connection)
            task = asyncio.create_task(connection.channel.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _watch(self, connection: "_Connection") -> None:
        """While the server cannot be reached, report the reason and use changed files; otherwise wait."""
        while True:
            state = connection.channel.get_state()
            if state is grpc.ChannelConnectivity.READY:
                self.problem = ""
                self._said.clear()
            refused = state is grpc.ChannelConnectivity.TRANSIENT_FAILURE
            if refused:
                await self._note_problem(connection)
                if self._identity.current().revision != connection.revision:
                    self._current()
                    connection.give_up_waiting()
                    return
            changed = asyncio.ensure_future(connection.channel.wait_for_state_change(state))
            try:
                await asyncio.wait({changed}, timeout=_LOOK_AGAIN_S if refused else None)
            finally:
                changed.cancel()
                await asyncio.gather(changed, return_exceptions=True)

    async def _note_problem(self, connection: "_Connection") -> None:
        try:
            await connection.channel.unary_unary(_PROBE)(b"", timeout=_PROBE_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                return  # the server answered
            problem = _in_words(error.details() or "")
            # A name may have several addresses, each with its own problem, and gRPC reports one of them at a time.
            if problem not in self._said:
                self._said.add(problem)
                log.warning("channel.not_connected", target=self._target, reason=problem)
            if not self.problem or _NOBODY_THERE not in problem:
                self.problem = problem


class _Connection:
    """A gRPC channel with the identity of its construction."""

    def __init__(self, channel: grpc.aio.Channel, revision: int) -> None:
        self.channel = channel
        self.revision = revision
        self.num_calls = 0
        self.replaced = asyncio.Event()
        self.waiting: set[_WaitingCall] = set()
        self._callables: dict[tuple[str, Any], Any] = {}

    def callable(self, shape: _Shape, method: str, options: dict[str, Any]) -> Any:
        """Return gRPC's callable of a method, which is made once."""
        key = method, options.get("response_deserializer")
        if key not in self._callables:
            self._callables[key] = getattr(self.channel, shape)(method, **options)
        return self._callables[key]

    def give_up_waiting(self) -> None:
        """End the calls that no server has accepted yet."""
        for call in tuple(self.waiting):
            call.give_up()


class _WaitingCall:
    """A call that waits for its server; `give_up` makes it fail with UNAVAILABLE instead of as cancelled."""

    def __init__(self, call: Any, connection: _Connection) -> None:
        self._call = call
        self._connection = connection
        self._given_up = asyncio.Event()

    def give_up(self) -> None:
        """End the call with UNAVAILABLE."""
        self._given_up.set()
        self._call.cancel()

    async def read(self) -> Any:
        """Return the next message."""
        return await self._ask(self._call.read)

    async def write(self, request: Any) -> None:
        """Send a message."""
        await self._ask(self._call.write, request)

    async def _ask(self, operation: Callable[..., Any], *args: Any) -> Any:
        if self not in self._connection.waiting and not self._given_up.is_set():
            return await operation(*args)
        try:
            result = await self._unless_given_up(operation, *args)
        except asyncio.CancelledError:
            self._raise_if_given_up()
            raise
        self._connection.waiting.discard(self)  # the server has accepted it: it ends normally
        return result

    async def _unless_given_up(self, operation: Callable[..., Any], *args: Any) -> Any:
        """Return the result of an operation; CancelledError as soon as the call was given up.

        gRPC's write to a call that waits for its server does not return when the call is cancelled.
        """
        working = asyncio.ensure_future(operation(*args))
        ending = asyncio.ensure_future(self._given_up.wait())
        try:
            await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
            if not working.done():
                working.cancel()
        return await working

    def _raise_if_given_up(self) -> None:
        task = asyncio.current_task()
        if self._given_up.is_set() and (task is None or not task.cancelling()):
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.UNAVAILABLE,
                grpc.aio.Metadata(),
                grpc.aio.Metadata(),
                "the certificates were replaced while the call waited for its server",
            ) from None

    async def _response(self) -> Any:
        return await self._ask(lambda: self._call)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._response().__await__()

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)


def _in_words(details: str) -> str:
    if "Socket closed" in details:
        return f"{details} (it closed the connection; does it ask for a certificate of another authority, or speak no TLS?)"
    return details
