"""Merging: iterates over the outputs of several engine requests, for an HTTP request with several prompts."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from functools import partial

from tetrad.frontend.llm.output_stream import OutputStream
from tetrad.frontend.request.outputs import RequestOutput
from tetrad.services.errors import TetradError

_MOST_TOGETHER = 64
"""Maximum number of outputs that are yielded together."""


async def merged(streams: Sequence[OutputStream]) -> AsyncIterator[list[tuple[int, RequestOutput]]]:
    """Yield lists of (index of the stream, output) as outputs arrive; the first error is raised.

    Closes all streams at the end.
    """
    try:
        if len(streams) == 1:
            async for output in streams[0]:
                yield [(0, output)]
            return
        # A task per stream would cost two iterations of the event loop per output. Outputs that are not read are merged.
        ready = _Ready(streams)
        num_unfinished = len(streams)
        while num_unfinished:
            outputs, error = await ready.take()
            num_unfinished -= sum(output.finished for _, output in outputs)
            if outputs:
                yield outputs
            if error is not None:
                raise error
    finally:
        for stream in streams:
            stream.close()


class _Ready:
    """The indices of streams with outputs, in the order of arrival."""

    def __init__(self, streams: Sequence[OutputStream]) -> None:
        self._streams = streams
        self._places: deque[int] = deque()
        self._changed = asyncio.Event()
        for place, stream in enumerate(streams):
            stream.call_when_ready(partial(self._note, place))

    async def take(self) -> tuple[list[tuple[int, RequestOutput]], TetradError | None]:
        """Wait for outputs, and return them with the error that follows them, if any."""
        await self._changed.wait()
        outputs: list[tuple[int, RequestOutput]] = []
        while self._places and len(outputs) < _MOST_TOGETHER:
            place = self._places.popleft()
            try:
                outputs.append((place, await self._streams[place].get()))
            except TetradError as error:
                return outputs, error
        if not self._places:
            self._changed.clear()
        return outputs, None

    def _note(self, place: int) -> None:
        self._places.append(place)
        self._changed.set()
