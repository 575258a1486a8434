"""A tiny service over real gRPC: generic handlers, so that these tests need no contract of their own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import grpc
import pytest

from tetrad.services.errors import TetradError
from tetrad.services.rpc.channel import open_channel
from tetrad.services.rpc.server import Server
from tetrad.services.rpc.status import from_rpc_error
from tetrad.services.settings import ServiceSettings

NAME = "test.Echo"


@dataclass
class Echo:
    """Answers bytes with what `behavior` makes of them."""

    behavior: Callable[[bytes], Awaitable[bytes]]
    server: Server = field(init=False)

    async def unary(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return await self.behavior(request)

    async def stream(self, request: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        yield b"first"
        yield await self.behavior(request)

    async def both(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        async for request in requests:
            if request == b"enough":
                return
            yield await self.behavior(request)

    def register(self, server: grpc.aio.Server) -> None:
        handlers = {
            "Unary": grpc.unary_unary_rpc_method_handler(self.unary),
            "Stream": grpc.unary_stream_rpc_method_handler(self.stream),
            "Both": grpc.stream_stream_rpc_method_handler(self.both),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, handlers),))


class Client:
    """Calls an Echo; raises TetradErrors as clients of the services do."""

    def __init__(self, address: str) -> None:
        self.channel = open_channel(address)

    async def unary(
        self, request: bytes = b"", *, metadata: tuple[tuple[str, str], ...] = (), timeout_s: float | None = None
    ) -> bytes:
        try:
            return await self.channel.unary_unary(f"/{NAME}/Unary")(request, metadata=metadata, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error

    async def stream(self, request: bytes = b"") -> tuple[list[bytes], TetradError | None]:
        """Return what came, and the error that ended it."""
        received = []
        try:
            async for message in self.channel.unary_stream(f"/{NAME}/Stream")(request):
                received.append(message)  # noqa: PERF401 - what came before an error counts
        except grpc.aio.AioRpcError as error:
            return received, from_rpc_error(error)
        return received, None


@pytest.fixture
async def serve(make_socket):
    """Return a starter of Echo servers: behavior -> (client, server)."""
    cleanups = []

    async def start(behavior, max_request_bytes=None, **fields) -> tuple[Client, Server]:
        echo = Echo(behavior)
        settings = ServiceSettings(listen=make_socket(f"s{len(cleanups)}"), **fields)
        server = Server(settings, {NAME: echo.register}, max_request_bytes=max_request_bytes)
        await server.start()
        await server.health.set_ready(True)
        client = Client(server.address)
        cleanups.append((client, server))
        return client, server

    yield start
    for client, server in cleanups:
        await client.channel.close()
        await asyncio.wait_for(server.stop(), 5)
