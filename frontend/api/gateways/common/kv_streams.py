"""KV streams: merges the KV events of all engine cores into one stream, for APIs that report cache contents to gateways."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Coroutine, Iterable, Sequence
from contextlib import aclosing
from typing import Any

from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.services.errors import TetradError, Unavailable
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


async def kv_events(llm: AsyncLLM, start: int = 0, *, ranks: Sequence[int] = ()) -> AsyncGenerator[Told, None]:
    """Yield the messages of engine cores with their ranks; raise Unavailable when one of them is lost, or another one joins.

    The blocks of engine cores that are not connected are cleared: at the beginning for those that an earlier subscription
    may have reported, at the end for those of this one.

    Args:
        llm: the model of the engine cores.
        start: number of the first message of each; 0: begin with a snapshot.
        ranks: the engine cores; empty: all that are connected. Only then another one that joins ends the stream.
    """
    streams, last = streams_of(llm, start), Counter[int]()
    for rank in _lost(llm, ranks or llm.engine_ranks):
        yield rank, _cleared(0)
    chosen = ranks or present_ranks(llm)
    ends = [] if ranks else [until_joined(llm, set(chosen))]
    try:
        async with aclosing(merged([streams[rank] for rank in chosen], *ends)) as events:
            async for place, notice in events:
                last[chosen[place]] = notice.sequence_number
                yield chosen[place], notice
    except TetradError:
        for rank in _lost(llm, chosen):
            yield rank, _cleared(last[rank])
        raise


def _lost(llm: AsyncLLM, ranks: Iterable[int]) -> list[int]:
    """Return those of some ranks whose engine cores are not connected."""
    connected = set(llm.engine_ranks) - llm.absent_engine_ranks
    return [rank for rank in ranks if rank not in connected]


def _cleared(number: int) -> engine_core_pb2.SubscribeKvEventsResponse:
    """Return the message that an engine core has no blocks, after its message of this number."""
    event = engine_core_pb2.KvCacheEvent(cleared=engine_core_pb2.KvBlocksCleared())
    return engine_core_pb2.SubscribeKvEventsResponse(sequence_number=number, timestamp_unix_s=time.time(), events=[event])


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
