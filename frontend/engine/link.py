"""EngineLink: the connection to one engine core, on which sessions are opened.

EngineClient opens one session after the other on it. A session carries the messages of engine_core.proto over any carrier;
EngineChannel implements the link over a channel (services/rpc/carrier.py).
"""

from typing import Any, Protocol

import grpc

from tetrad.services.rpc.channel import problem_of
from tetrad.v1 import engine_core_pb2, engine_core_pb2_grpc


class SessionCall(Protocol):
    """A Session stream. Its methods raise grpc.aio.AioRpcError, or InvalidStateError if the stream has ended."""

    async def write(self, message: engine_core_pb2.SessionRequest) -> None:
        """Send a message; the first one waits until an engine core is connected."""

    async def read(self) -> Any:
        """Return the next SessionResponse; grpc.aio.EOF at the end; None for bytes that cannot be decoded."""

    def cancel(self) -> bool:
        """End the stream; a pending read raises CancelledError."""


class EngineLink(Protocol):
    """A connection to an engine core, which may be lost and return."""

    @property
    def problem(self) -> str:
        """The reason why the engine core is unreachable; empty if it is reachable or the reason is unknown."""

    def open_session(self) -> SessionCall:
        """Return a stream that starts when an engine core is connected."""

    async def close(self) -> None:
        """End all sessions."""


class EngineChannel:
    """An EngineLink over a channel, which it owns."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._stub = engine_core_pb2_grpc.EngineCoreServiceStub(channel)

    @property
    def problem(self) -> str:
        """The state of the channel's connection."""
        return problem_of(self._channel)

    def open_session(self) -> SessionCall:
        """Start a Session call."""
        call: SessionCall = self._stub.Session(wait_for_ready=True)
        return call

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()
