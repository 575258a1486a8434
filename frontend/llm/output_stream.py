"""OutputStream: gives a caller the outputs of its request, or of several requests as they arrive.

Made by AsyncLLM; used on its event loop.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Protocol, Self

from tetrad.frontend.llm.unfinished_requests import UnfinishedRequests
from tetrad.frontend.media.features import MediaFeature
from tetrad.frontend.net.side_thread import in_side_thread
from tetrad.frontend.request.logprobs import wide_positions
from tetrad.frontend.request.outputs import RequestOutput
from tetrad.frontend.request.request_state import RequestState
from tetrad.services.errors import TetradError


class Outputs(Protocol):
    """The outputs of a request; to be iterated once, then closed."""

    @property
    def prompt_token_ids(self) -> list[int]:
        """The prompt's ids."""

    @property
    def predicted_ids(self) -> list[int]:
        """The token ids that the caller expects as the output."""

    @property
    def prompt(self) -> str | None:
        """The prompt's text, if known."""

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        """Iterate over the outputs."""

    def close(self) -> None:
        """Abort the request unless it is finished."""


class OutputStream:
    """The outputs of one request. Closing the stream before the last output aborts the request.

    Iterate over the stream, or call `get`; both raise the request's TetradError.
    """

    def __init__(self, request: RequestState, requests: UnfinishedRequests) -> None:
        self._request = request
        self._requests = requests
        self._done = False

    @property
    def prompt_token_ids(self) -> list[int]:
        """The prompt's ids."""
        return self._request.prompt_token_ids

    @property
    def features(self) -> tuple[MediaFeature, ...]:
        """The preprocessed images of the prompt."""
        return self._request.features

    @property
    def num_virtual_tokens(self) -> int:
        """The number of tokens that a prompt adapter puts before the prompt."""
        return self._request.num_virtual_tokens

    @property
    def predicted_ids(self) -> list[int]:
        """The token ids that the caller expects as the output."""
        return self._request.predicted_ids

    @property
    def prompt(self) -> str | None:
        """The prompt's text, if known."""
        return self._request.prompt

    async def get(self) -> RequestOutput:
        """Wait for the next output."""
        output = await self._request.collector.get()
        self._done = output.finished
        for position in wide_positions(output):
            await in_side_thread(position.fill)
        return output

    def call_when_ready(self, note_ready: Callable[[], None]) -> None:
        """Call `note_ready` whenever `get` would not wait: once for each output, and once for a failure."""
        self._request.collector.call_when_ready(note_ready)

    def get_nowait(self) -> RequestOutput | None:
        """Return the next output; None if there is none yet."""
        output = self._request.collector.get_nowait()
        if output is not None:
            self._done = self._done or output.finished
            for position in wide_positions(output):
                position.fill()
        return output

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._done:
            raise StopAsyncIteration
        return await self.get()

    def abort(self) -> None:
        """End the request with finish reason "abort" and one more output to read; no-op if it is finished."""
        if not self._request.finished:
            self._requests.abort_request(self._request)

    def close(self) -> None:
        """Abort the request unless it is finished, and end the stream."""
        self.abort()
        self._done = True


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
