"""Encoding: the media items of one Execute stream, between the event loop and the thread that encodes them.

Items are encoded one at a time in the order of the stream. Every item ends with one event, unless a plan frees it before. Runs
on the event loop.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import NamedTuple, TypeVar

from tetrad.services.errors import InvalidRequest, TetradError
from tetrad.worker_svc.core.plan import EncoderItem
from tetrad.worker_svc.worker.compute_thread import ComputeThread

T = TypeVar("T")
Event = TypeVar("Event")


class RequestedItem(NamedTuple):
    """A media item of a stream; `item` is the error if it cannot be read."""

    identifier: str
    num_embeds: int
    item: EncoderItem | TetradError


class EndedItem(NamedTuple):
    """An item that is in the encoder cache, or the error of one that cannot be encoded."""

    identifier: str
    error: TetradError | None


class StreamMedia:
    """The items of a stream.

    Args:
        encode: encodes an item that was requested after the plan of this step, on `thread`, and stores it. A TetradError fails
            the item; any other error means that the device can no longer be used.
        thread: the thread that encodes.
        size: size of the encoder cache, in embeddings.
        fail: called with the error if the device can no longer be used.

    Attributes:
        events: the ends of items.
    """

    def __init__(
        self,
        encode: Callable[[EncoderItem, int], None],
        thread: ComputeThread,
        size: int,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._encode, self._thread, self._size, self._fail = encode, thread, size, fail
        self.events: asyncio.Queue[EndedItem] = asyncio.Queue()
        self._sizes: dict[str, int] = {}  # embeddings of each item that is in the cache, or on its way
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._last_step = -1

    def take(self, items: Iterable[RequestedItem]) -> None:
        """Queue items; raise InvalidRequest if they do not fit into the encoder cache with the others."""
        for item in items:
            self._sizes[item.identifier] = item.num_embeds
            if (total := sum(self._sizes.values())) > self._size:
                raise InvalidRequest(
                    f"Media item {item.identifier[:80]} of {item.num_embeds} embeddings does not fit: with the others it makes "
                    f"{total}, and the encoder cache has {self._size}."
                )
            self._queue(item)

    def note_plan(self, step_id: int, freed: tuple[str, ...]) -> None:
        """Note a plan that arrives, and forget the items that it frees."""
        self._last_step = step_id
        for identifier in freed:
            self._sizes.pop(identifier, None)
            if (waiting := self._waiting.pop(identifier, None)) is not None:
                waiting.cancel()

    def close(self) -> None:
        """Drop the items that are not encoded yet."""
        for waiting in self._waiting.values():
            waiting.cancel()

    def _queue(self, requested: RequestedItem) -> None:
        identifier, _, item = requested
        if (earlier := self._waiting.pop(identifier, None)) is not None:
            earlier.cancel()
        if isinstance(item, TetradError):
            self._end(identifier, item)
            return
        future = self._waiting[identifier] = self._thread.submit(self._encode, item, self._last_step)
        future.add_done_callback(lambda ended: self._note_end(identifier, ended))

    def _note_end(self, identifier: str, ended: asyncio.Future[None]) -> None:
        if ended.cancelled() or self._waiting.get(identifier) is not ended:
            return
        del self._waiting[identifier]
        error = ended.exception()
        if error is None or isinstance(error, TetradError):
            self._end(identifier, error)
        else:
            self._fail(error)

    def _end(self, identifier: str, error: TetradError | None) -> None:
        if error is not None:
            self._sizes.pop(identifier, None)
        self.events.put_nowait(EndedItem(identifier, error))


async def merged(answers: AsyncIterator[T], events: asyncio.Queue[Event], make: Callable[[Event], T]) -> AsyncIterator[T]:
    """Yield answers, and what `make` returns for each event, as they come; end with the answers."""
    answer, event = _next(answers), asyncio.ensure_future(events.get())
    try:
        while True:
            await asyncio.wait((answer, event), return_when=asyncio.FIRST_COMPLETED)
            if event.done():
                yield make(event.result())
                event = asyncio.ensure_future(events.get())
            if answer.done():
                try:
                    yield answer.result()
                except StopAsyncIteration:
                    return
                answer = _next(answers)
    finally:
        for task in (answer, event):
            task.cancel()
        await asyncio.gather(answer, event, return_exceptions=True)


def _next(answers: AsyncIterator[T]) -> asyncio.Task[T]:
    async def take() -> T:
        return await anext(answers)

    return asyncio.create_task(take())
