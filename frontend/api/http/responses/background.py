"""Background: generates responses without a connected client; clients follow or cancel them by id.

A finished response that cannot be saved stays in memory until the store works again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress

from tetrad.frontend.api.http.responses.encoding import encoded_events
from tetrad.frontend.api.http.responses.generation import Generation
from tetrad.frontend.api.http.responses.store import ResponseStore
from tetrad.frontend.api.http.sse.named_events import Event, named_events
from tetrad.frontend.net.backoff import Backoff
from tetrad.services.errors import InternalError, TetradError, Unavailable
from tetrad.services.log import get_logger

log = get_logger()

MAX_FINISHED = 64
"""Number of finished responses whose events are kept, so that clients can still follow them."""
_WATCH_S = 1.0


class BackgroundJob:
    """The generation of one response in the background.

    Args:
        generation: a generation that has been started and saved.
        keep_events: whether events are kept for clients that follow the response.
    """

    def __init__(self, generation: Generation, *, keep_events: bool) -> None:
        self.generation = generation
        self.keeps_events = keep_events
        # One entry per event: its index is its sequence number.
        queued = generation.events.queue()
        self._events = [named_events([each]) for each in queued] if keep_events else []
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._generating = asyncio.create_task(self._generate(), name=f"background response {generation.id}")
        self.task = asyncio.create_task(self._run(), name=f"background response {generation.id}, to its end")

    async def follow(self, first: int) -> AsyncIterator[bytes]:
        """Yield the events from number `first` on, until the last one."""
        while True:
            if first < len(self._events):
                piece = b"".join(self._events[first:])
                first = len(self._events)
                yield piece
            elif self._settled.is_set() or self.task.done():
                return
            else:
                await self._next_change()

    async def cancel(self) -> None:
        """Stop the generation. The response is then cancelled, unless it was complete; it is saved, or `is_unsaved` is set."""
        # Of a final response, only the saving is left, and then its last events.
        if not self.generation.events.is_final:
            self._generating.cancel()
        await self.wait_settled()

    async def wait_settled(self) -> None:
        """Wait until the response is final and was saved, or could not be saved."""
        settling = asyncio.create_task(self._settled.wait())
        try:
            await asyncio.wait({settling, self.task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            settling.cancel()

    @property
    def tasks(self) -> tuple[asyncio.Task[None], asyncio.Task[None]]:
        """The tasks of this response."""
        return self._generating, self.task

    def discard(self) -> None:
        """Stop the generation of a deleted response. A cancellation ends first: its caller gets the state that was saved."""
        if self._settled.is_set() or not self._generating.cancelling():
            self.stop()

    def stop(self) -> None:
        """Stop the generation without saving the response."""
        self.task.cancel()
        self._generating.cancel()
        self.generation.close()

    async def _next_change(self) -> None:
        changing = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait({changing, self.task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changing.cancel()

    async def _run(self) -> None:
        await asyncio.wait({self._generating})
        # A task that was cancelled before its start has not closed the generation.
        self.generation.close()
        await self.generation.cancel()
        self._settled.set()
        self._wake_followers()
        await self._save_at_last()

    async def _generate(self) -> None:
        generation = self.generation
        try:
            async with aclosing(generation.updates()) as updates:
                async for events in updates:
                    await self._note(events)
        except TetradError as error:
            await self._note(await generation.fail(error))
        except Exception as error:
            log.error("responses.failed", response_id=generation.id, exc_info=error)
            await self._note(await generation.fail(InternalError("The response failed; the server's log has the details.")))

    async def _save_at_last(self) -> None:
        backoff = Backoff()
        while self.generation.is_unsaved:
            await backoff.wait()
            with suppress(Unavailable):
                await self.generation.save()
                log.info("responses.stored_late", response_id=self.generation.id)

    async def _note(self, events: list[Event]) -> None:
        if self.keeps_events:
            num_before = len(self._events)
            try:
                for each in events:
                    self._events.append(await encoded_events([each]))
            finally:
                # Also after a cancellation: everything that has happened gets its events.
                self._events += [named_events([each]) for each in events[len(self._events) - num_before :]]
                self._wake_followers()

    def _wake_followers(self) -> None:
        self._changed.set()
        # All present waiters are woken; later ones wait for a new event.
        self._changed = asyncio.Event()


class BackgroundJobs:
    """The jobs of this process, by the ids of their responses. Jobs that another frontend has cancelled or deleted are stopped.

    Args:
        store: shows which responses other frontends, which share it, have cancelled or deleted.
        watch_s: seconds between two looks at the store, while there are jobs.
    """

    def __init__(self, store: ResponseStore, *, watch_s: float = _WATCH_S) -> None:
        self._store, self._watch_s = store, watch_s
        self._watching: asyncio.Task[None] | None = None
        self._jobs: dict[str, BackgroundJob] = {}
        self._finished: OrderedDict[str, BackgroundJob] = OrderedDict()

    def start(self, generation: Generation, *, keep_events: bool) -> BackgroundJob:
        """Generate a started response in the background."""
        job = BackgroundJob(generation, keep_events=keep_events)
        self._jobs[generation.id] = job
        job.task.add_done_callback(lambda _: self._finish(generation.id))
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch(), name="background responses, stopped elsewhere")
        return job

    def running(self, response_id: str) -> BackgroundJob | None:
        """Return the job of a response that has not been saved as final; None: there is none."""
        return self._jobs.get(response_id)

    def followable(self, response_id: str) -> BackgroundJob | None:
        """Return the job of a response whose events are kept; None: there is none."""
        job = self._jobs.get(response_id) or self._finished.get(response_id)
        return job if job is not None and job.keeps_events else None

    def drop(self, response_id: str) -> None:
        """Stop the job of a deleted response and drop its events."""
        self._finished.pop(response_id, None)
        job = self._jobs.pop(response_id, None)
        if job is not None:
            job.discard()

    async def close(self) -> None:
        """Stop all jobs. Final responses are saved if the store works."""
        if self._watching is not None:
            self._watching.cancel()
        jobs = list(self._jobs.values())
        for job in jobs:
            job.stop()
        await asyncio.gather(*(task for job in jobs for task in job.tasks), return_exceptions=True)
        for job in jobs:
            if job.generation.is_unsaved:
                await job.generation.cancel()

    async def _watch(self) -> None:
        # The store is a file: it tells nobody of a change.
        while self._jobs:
            await asyncio.sleep(self._watch_s)
            with suppress(Unavailable):
                for response_id in await self._store.stopped_of(self._jobs.keys()):
                    job = self._jobs.get(response_id)
                    if job is not None:
                        await job.cancel()

    def _finish(self, response_id: str) -> None:
        job = self._jobs.pop(response_id, None)
        if job is not None and job.keeps_events:
            self._finished[response_id] = job
            if len(self._finished) > MAX_FINISHED:
                self._finished.popitem(last=False)
