"""Merging: iterates over the outputs of several engine requests at once, for an HTTP request with several prompts."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from tetrad.frontend.llm.output_stream import OutputStream
from tetrad.frontend.request.outputs import RequestOutput
from tetrad.services.errors import TetradError

_Queue = asyncio.Queue[tuple[int, RequestOutput | TetradError | None]]


_MOST = 64
"""Outputs that are yielded together."""


async def merged(streams: Sequence[OutputStream]) -> AsyncIterator[list[tuple[int, RequestOutput]]]:
    """Yield (place of the stream, output) as they come, those that are there together; the first error ends it.

    Closes all streams at the end.
    """
    try:
        if len(streams) == 1:
            async for output in streams[0]:
                yield [(0, output)]
            return
        # One slot each: a slow client is to be felt by the collectors, which merge.
        queue: _Queue = asyncio.Queue(maxsize=len(streams))
        tasks = [asyncio.create_task(_forward(place, stream, queue)) for place, stream in enumerate(streams)]
        try:
            remaining = len(streams)
            while remaining:
                items, outputs = [await queue.get()], []
                while not queue.empty() and len(items) < _MOST:
                    items.append(queue.get_nowait())
                error = None
                for place, item in items:
                    if isinstance(item, TetradError):
                        error = item
                        break
                    if item is None:
                        remaining -= 1
                    else:
                        outputs.append((place, item))
                if outputs:
                    yield outputs
                if error is not None:
                    raise error
        finally:
            for task in tasks:
                task.cancel()
    finally:
        for stream in streams:
            stream.close()


async def _forward(place: int, stream: OutputStream, queue: _Queue) -> None:
    try:
        async for output in stream:
            await queue.put((place, output))
        await queue.put((place, None))
    except TetradError as error:
        await queue.put((place, error))
