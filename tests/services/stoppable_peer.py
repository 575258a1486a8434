"""A peer that a test stops and continues: `python -m tests.services.stoppable_peer LISTEN CALL_UNIX CALL_TCP`.

Listens at LISTEN and a free port, and holds one stream of each kind to both addresses that it calls. Prints its own port when
all of them are open.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence

import grpc

from tetrad.services.log import configure_logging
from tetrad.services.rpc.channel import open_channel
from tetrad.services.rpc.server import Server
from tetrad.services.settings import ServiceSettings

NAME = "test.Streams"
KINDS = ("idle", "caller_writes", "server_writes")
_INTERVAL_S = 0.05


class Streams:
    """Streams that last until they break.

    Attributes:
        open: "kind address" of each call to this server that has not ended.
    """

    def __init__(self) -> None:
        self.open: set[str] = set()
        self._none_open = asyncio.Event()

    async def wait_none_open(self) -> None:
        await self._none_open.wait()

    async def stream(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        name = (await anext(requests)).decode()
        self.open.add(name)
        reading = asyncio.create_task(_read_all(requests))
        try:
            yield b"open"
            while True:
                await asyncio.sleep(_INTERVAL_S)
                if name.startswith("server_writes"):
                    yield b"news"
        finally:
            self.open.discard(name)
            if not self.open:
                self._none_open.set()
            reading.cancel()

    def register(self, server: grpc.aio.Server) -> None:
        handler = grpc.stream_stream_rpc_method_handler(self.stream)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, {"Stream": handler}),))


async def serve(listen: str) -> tuple[Streams, Server]:
    """Serve streams at an address and a free port, which is the server's own address."""
    streams = Streams()
    server = Server(ServiceSettings(listen="127.0.0.1:0"), {NAME: streams.register}, also_listen=(listen,))
    await server.start()
    return streams, server


async def hold_stream(channel: grpc.aio.Channel, kind: str, name: str, on_open: Callable[[str], object]) -> None:
    """Hold a stream until it breaks."""
    call = channel.stream_stream(f"/{NAME}/Stream")(wait_for_ready=True)
    await call.write(name.encode())
    await call.read()
    on_open(name)
    writing = asyncio.create_task(_write(call)) if kind == "caller_writes" else None
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError:
        pass
    finally:
        if writing is not None:
            writing.cancel()


def hold_all(addresses: Sequence[str], on_open: Callable[[str], object]) -> dict[str, asyncio.Task[None]]:
    """Hold a stream of each kind to each address, each on a connection of its own; return the tasks by "kind address"."""
    return {
        f"{kind} {address}": asyncio.create_task(
            # An argument that no other channel has: gRPC would let equal ones share a connection.
            hold_stream(open_channel(address, max_message_bytes=(4 << 20) + number), kind, f"{kind} {address}", on_open)
        )
        for address in addresses
        for number, kind in enumerate(KINDS)
    }


async def _write(call: grpc.aio.StreamStreamCall) -> None:
    while True:
        await asyncio.sleep(_INTERVAL_S)
        await call.write(b"news")


async def _read_all(requests: AsyncIterator[bytes]) -> None:
    async for _ in requests:
        pass


async def _main(listen: str, *called: str) -> None:
    configure_logging("peer", level="error", json=True)  # to stderr
    _, server = await serve(listen)
    held: set[str] = set()
    all_open = asyncio.Event()

    def on_open(name: str) -> None:
        held.add(name)
        if len(held) == len(KINDS) * len(called):
            all_open.set()

    tasks = hold_all(called, on_open)
    await all_open.wait()
    sys.stdout.write(f"{server.address}\n")
    sys.stdout.flush()
    await asyncio.gather(*tasks.values())
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
