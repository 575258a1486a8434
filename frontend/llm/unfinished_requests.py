"""UnfinishedRequests: all requests in progress, the engine of each, and every way in which a request ends.

Fed by the intake; asked by the output processor, one step at a time, for whom a step is. A request ends once: it is told to
its engine, to the detokenizer, to the metrics, to its call's trace and to the log here, whatever ended it.
"""

import asyncio
from collections.abc import Iterable
from typing import Protocol

from tetrad.frontend.observability.metrics import FrontendMetrics
from tetrad.frontend.observability.recent_requests import RecentRequests
from tetrad.frontend.request.request_state import RequestState
from tetrad.frontend.request.sequence import Sequence
from tetrad.frontend.tokenizer.detokenizer_client import DetokenizerClient
from tetrad.services.errors import TetradError
from tetrad.services.log import get_logger

log = get_logger()


class Engine(Protocol):
    """What an engine is told."""

    def forget(self, request_id: str) -> None:
        """A sequence is finished."""

    def abort(self, request_ids: Iterable[str]) -> None:
        """Sequences are to end."""


class Live:
    """An unfinished sequence with what it belongs to."""

    __slots__ = ("engine", "request", "sequence")

    def __init__(self, sequence: Sequence, request: RequestState, engine: Engine) -> None:
        self.sequence = sequence
        self.request = request
        self.engine = engine


class UnfinishedRequests:
    """All unfinished requests of this frontend.

    Args:
        detokenizer: forgets the sequences that end.
        metrics: counted per request.
        recent: remembers requests that ended.
    """

    def __init__(self, detokenizer: DetokenizerClient, metrics: FrontendMetrics, recent: RecentRequests) -> None:
        self._detokenizer = detokenizer
        self._metrics = metrics
        self._recent = recent
        self._live: dict[int, Live] = {}
        self._requests: dict[str, list[RequestState]] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._last_handle = 0

    def __len__(self) -> int:
        return sum(len(states) for states in self._requests.values())

    def new_handle(self) -> int:
        """Return a handle that no unfinished sequence has."""
        while True:
            self._last_handle = (self._last_handle + 1) % 2**32
            if self._last_handle not in self._live:
                return self._last_handle

    def add(self, request: RequestState, engine: Engine) -> None:
        """Take a request that `engine` is to run."""
        self._idle.clear()
        self._requests.setdefault(request.request_id, []).append(request)
        for sequence in request.sequences:
            self._live[sequence.handle] = Live(sequence, request, engine)

    def find(self, handle: int) -> Live | None:
        """Return the sequence of a handle; None: it has ended."""
        return self._live.get(handle)

    def has_issued(self, handle: int) -> bool:
        """Return whether a handle was given to a sequence, which may have ended; only roughly after 2**32 of them."""
        return 0 < handle <= self._last_handle

    def move(self, sequence: Sequence, engine: Engine) -> None:
        """Note that another engine goes on with a sequence."""
        live = self._live.get(sequence.handle)
        if live is not None:
            live.engine = engine

    async def wait_idle(self) -> None:
        """Wait until no request is unfinished."""
        await self._idle.wait()

    # --- how they end -----------------------------------------------------------------------------------------------

    def finish(self, live: Live, received_ns: int) -> None:
        """Deliver the last output of a sequence; what it ended with came at `received_ns` of the wall clock."""
        self._end(live, received_ns)
        live.request.deliver(live.sequence)
        if live.request.finished:
            self._retire(live.request)

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests by the caller's ids with finish reason "abort"; unknown ids are ignored."""
        for request_id in request_ids:
            for request in list(self._requests.get(request_id, ())):
                self.abort_request(request)

    def abort_request(self, request: RequestState) -> None:
        """End one request with finish reason "abort"; no-op if it is finished."""
        for live in self._lives_of(request):
            live.engine.abort([live.sequence.request_id])
            live.sequence.finish("abort")
            self._end(live)
            request.deliver(live.sequence)
        self._retire(request)

    def fail(self, sequence: Sequence, error: TetradError) -> None:
        """End the request of a sequence with an error; no-op if it is finished."""
        live = self._live.get(sequence.handle)
        if live is not None:
            self.fail_request(live.request, error)

    def fail_request(self, request: RequestState, error: TetradError) -> None:
        """End a request with an error; no-op if it is finished."""
        if request not in self._requests.get(request.request_id, ()):
            return
        for each in self._lives_of(request):
            each.engine.abort([each.sequence.request_id])
            each.sequence.finish("error")
            self._end(each)
        request.num_unfinished = 0
        request.collector.fail(error)
        self._retire(request, error)

    def fail_all(self, error: TetradError) -> None:
        """End every request with an error."""
        for live in list(self._live.values()):
            self.fail_request(live.request, error)

    def _end(self, live: Live, received_ns: int | None = None) -> None:
        handle = live.sequence.handle
        live.request.call.end_sequence(live.sequence, received_ns)
        self._live.pop(handle, None)
        live.engine.forget(live.sequence.request_id)
        self._detokenizer.forget(handle)

    def _retire(self, request: RequestState, error: TetradError | None = None) -> None:
        states = self._requests.get(request.request_id)
        if states is None or request not in states:
            return
        states.remove(request)
        request.retire()
        if not states:
            del self._requests[request.request_id]
        if not self._requests:
            self._idle.set()
        self._metrics.observe_finished(request, error, idle=not self._requests)
        self._recent.note(request, error)
        is_aborted = any(sequence.finish_reason == "abort" for sequence in request.sequences)
        reason = error.reason if error is not None else "ABORTED" if is_aborted else ""
        request.call.end_request(request.params, len(request.prompt_token_ids), request.metrics, reason)
        log.info(
            "request.finished",
            **request.call.context.log_fields(request.request_id),
            num_prompt_tokens=len(request.prompt_token_ids),
            num_generation_tokens=request.metrics.num_generation_tokens,
            reasons=[sequence.finish_reason for sequence in request.sequences],
            error=None if error is None else error.message,
        )

    def _lives_of(self, request: RequestState) -> list[Live]:
        return [live for sequence in request.sequences if (live := self._live.get(sequence.handle)) is not None]
