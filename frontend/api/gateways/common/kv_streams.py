"""KV streams: merges the KV events of all engine cores into one stream, for APIs that report cache contents to gateways."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Coroutine, Sequence
from typing import Any

from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.services.errors import Unavailable
from tetrad.v1 import engine_core_pb2

_CAPACITY = 16
"""Maximum number of batches that are read in advance; a slower gateway later gets a snapshot, like all subscribers."""

Told = tuple[int, engine_core_pb2.SubscribeKvEventsResponse]


def streams_of(llm: AsyncLLM, start: int = 0) -> dict[int, AsyncIterator[engine_core_pb2.SubscribeKvEventsResponse]]:
    """Return the streams of all engine cores by rank; those of absent ones would end all, see `merged`."""
    return dict(zip(llm.engine_ranks, llm.engine_admin.kv_events(start), strict=True))


def present_ranks(llm: AsyncLLM) -> list[int]:
    """Return the ranks of the connected engine cores; all ranks if none is connected."""
    ranks, absent = sorted(llm.engine_ranks), llm.absent_engine_ranks
    return [rank for rank in ranks if rank not in absent] or ranks


async def until_joined(llm: AsyncLLM, ranks: Collection[int]) -> None:
    """Raise Unavailable as soon as an engine core of another rank is connected: the next subscription includes it."""
    async for _ in llm.readiness.follow():
        if not set(present_ranks(llm)).issubset(ranks):
            raise Unavailable("An engine core has joined; subscribe again.")


async def merged(
    streams: Sequence[AsyncIterator[engine_core_pb2.SubscribeKvEventsResponse]], *ends: Coroutine[Any, Any, None]
) -> AsyncGenerator[Told, None]:
    """Yield the messages of several streams with the index of their stream; raise the error of the first that ends.

    Args:
        streams: the streams to read.
        ends: what may end all of them besides.
    """
    queue: asyncio.Queue[Told] = asyncio.Queue(_CAPACITY)

    async def read(rank: int, stream: AsyncIterator[engine_core_pb2.SubscribeKvEventsResponse]) -> None:
        async for notice in stream:
            await queue.put((rank, notice))

    readers = [asyncio.create_task(each) for each in (*(read(rank, stream) for rank, stream in enumerate(streams)), *ends)]
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
