"""KV streams: merges the KV events of all engine cores into one stream, for APIs that report cache contents to gateways."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from tetrad.v1 import engine_core_pb2

_CAPACITY = 16
"""Maximum number of batches that are read in advance; a slower gateway later gets a snapshot, like all subscribers."""

Told = tuple[int, engine_core_pb2.SubscribeKvEventsResponse]


async def merged(
    streams: Sequence[AsyncIterator[engine_core_pb2.SubscribeKvEventsResponse]],
) -> AsyncGenerator[Told, None]:
    """Yield the messages of several streams with the index of their stream, until one of them ends; raise its error."""
    queue: asyncio.Queue[Told] = asyncio.Queue(_CAPACITY)

    async def read(rank: int, stream: AsyncIterator[engine_core_pb2.SubscribeKvEventsResponse]) -> None:
        async for told in stream:
            await queue.put((rank, told))

    readers = [asyncio.create_task(read(rank, stream)) for rank, stream in enumerate(streams)]
    getting = asyncio.create_task(queue.get())
    try:
        while True:
            await asyncio.wait({getting, *readers}, return_when=asyncio.FIRST_COMPLETED)
            if getting.done():
                yield getting.result()
                getting = asyncio.create_task(queue.get())
                continue
            for reader in readers:
                if reader.done():
                    reader.result()
            return
    finally:
        for task in (getting, *readers):
            task.cancel()
        await asyncio.gather(getting, *readers, return_exceptions=True)
