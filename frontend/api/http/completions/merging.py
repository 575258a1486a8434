"""Merging: iterates over the outputs of several engine requests at once, for an HTTP request with several prompts."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from tetrad.frontend.llm.output_stream import Outputs
from tetrad.frontend.request.outputs import RequestOutput
from tetrad.services.errors import TetradError


async def merged(streams: Sequence[Outputs]) -> AsyncIterator[tuple[int, RequestOutput]]:
    """Yield (place of the stream, output) as they come; closes all streams at the end. The first error ends it."""
    try:
        if len(streams) == 1:
            async for output in streams[0]:
                yield 0, output
            return
        # One slot each: a slow client is to be felt by the collectors, which merge.
        queue: asyncio.Queue[tuple[int, RequestOutput | TetradError | None]] = asyncio.Queue(maxsize=len(streams))
        tasks = [asyncio.create_task(_forward(place, stream, queue)) for place, stream in enumerate(streams)]
        try:
            remaining = len(streams)
            while remaining:
                place, item = await queue.get()
                if isinstance(item, TetradError):
                    raise item
                if item is None:
                    remaining -= 1
                else:
                    yield place, item
        finally:
            for task in tasks:
                task.cancel()
    finally:
        for stream in streams:
            stream.close()


async def _forward(place: int, stream: Outputs, queue: "asyncio.Queue[tuple[int, RequestOutput | TetradError | None]]") -> None:
    try:
        async for output in stream:
            await queue.put((place, output))
        await queue.put((place, None))
    except TetradError as error:
        await queue.put((place, error))
