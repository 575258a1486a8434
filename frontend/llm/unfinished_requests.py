"""UnfinishedRequests: all requests in progress, the engine core of each, and every way in which a request ends.

The intake adds requests; the output processor finds sequences by handle. A request ends once: this class then notifies its
engine core, the detokenizer, the metrics, the call's trace and the log.
"""

import asyncio
from collections.abc import Iterable

from tetrad.frontend.engine.client_sequence import ActiveSequence, Engine
from tetrad.frontend.observability.metrics import FrontendMetrics
from tetrad.frontend.observability.recent_requests import RecentRequests
from tetrad.frontend.request.kv_transfer import FIELD_OF_ENGINE_CORES, KV_TRANSFER_PARAMS
from tetrad.frontend.request.request_state import RequestState
from tetrad.frontend.request.sampling_values import EXTRA_ARGS, name_of_extra_args
from tetrad.frontend.request.sequence import Sequence
from tetrad.frontend.tokenizer.detokenizer_client import DetokenizerClient
from tetrad.services.errors import TetradError
from tetrad.services.log import get_logger

log = get_logger()


class UnfinishedRequests:
    """All unfinished requests of this frontend.

    Args:
        detokenizer: notified of each sequence that ends.
        metrics: updated once per request.
        recent: records the requests that have ended.
    """

    def __init__(self, detokenizer: DetokenizerClient, metrics: FrontendMetrics, recent: RecentRequests) -> None:
        self._detokenizer = detokenizer
        self._metrics = metrics
        self._recent = recent
        self._active: dict[int, ActiveSequence] = {}
        self._requests: dict[str, list[RequestState]] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._last_handle = 0

    def __len__(self) -> int:
        return sum(len(states) for states in self._requests.values())

    def new_handle(self) -> int:
        """Return a handle that no unfinished sequence uses."""
        while True:
            self._last_handle = (self._last_handle + 1) % 2**32
            if self._last_handle not in self._active:
                return self._last_handle

    def add(self, request: RequestState, active: Iterable[ActiveSequence]) -> None:
        """Add a request with its sequences, or with the first of them."""
        self._idle.clear()
        self._requests.setdefault(request.request_id, []).append(request)
        for each in active:
            self.add_sequence(each)

    def add_sequence(self, active: ActiveSequence) -> None:
        """Add a further sequence of a request that was added before."""
        self._active[active.sequence.handle] = active

    def find(self, handle: int) -> ActiveSequence | None:
        """Return the sequence of a handle; None: the sequence has ended."""
        return self._active.get(handle)

    def has_issued(self, handle: int) -> bool:
        """Return whether `new_handle` has returned this handle; approximate after 2**32 handles."""
        return 0 < handle <= self._last_handle

    def move(self, sequence: Sequence, engine: Engine) -> None:
        """Record that another engine continues a sequence."""
        active = self._active.get(sequence.handle)
        if active is not None:
            active.engine = engine

    async def wait_idle(self) -> None:
        """Wait until no request is unfinished."""
        await self._idle.wait()

    # --- ends of requests -------------------------------------------------------------------------------------------

    def finish(self, active: ActiveSequence, received_ns: int) -> None:
        """End a sequence and deliver its last output; its last step was received at `received_ns` of the wall clock."""
        self._end(active, received_ns)
        active.request.deliver(active.sequence)
        if active.request.finished:
            self._retire(active.request)

    def abort(self, request_ids: Iterable[str]) -> None:
        """End the requests with these caller's ids with finish reason "abort"; unknown ids are ignored."""
        for request_id in request_ids:
            for request in list(self._requests.get(request_id, ())):
                self.abort_request(request)

    def abort_request(self, request: RequestState) -> None:
        """End one request with finish reason "abort"; no-op if it is finished."""
        for sequence in request.sequences:
            if sequence.finished:
                continue
            sequence.finish("abort")
            active = self._active.get(sequence.handle)
            if active is not None:  # else the sequence has not been sent yet
                active.engine.abort([sequence.request_id])
                self._end(active)
            request.deliver(sequence)
        self._retire(request)

    def fail(self, sequence: Sequence, error: TetradError) -> None:
        """End the request of a sequence with an error; no-op if it is finished."""
        active = self._active.get(sequence.handle)
        if active is not None:
            self.fail_request(active.request, error)

    def fail_request(self, request: RequestState, error: TetradError) -> None:
        """End a request with an error; no-op if it is finished."""
        if request not in self._requests.get(request.request_id, ()):
            return
        for each in self._active_of(request):
            each.engine.abort([each.sequence.request_id])
            each.sequence.finish("error")
            self._end(each)
        request.num_unfinished = 0
        if request.params.structured_outputs is not None:
            request.params.structured_outputs.name_field(error)
        if error.field == EXTRA_ARGS:
            error.field = name_of_extra_args(request.params.extra_args)
        if error.field == FIELD_OF_ENGINE_CORES:
            error.field = KV_TRANSFER_PARAMS
        request.collector.fail(error)
        self._retire(request, error)

    def fail_all(self, error: TetradError) -> None:
        """End every request with an error."""
        for request in [each for states in self._requests.values() for each in states]:
            self.fail_request(request, error)

    def _end(self, active: ActiveSequence, received_ns: int | None = None) -> None:
        handle = active.sequence.handle
        active.request.call.end_sequence(active.sequence, received_ns)
        self._active.pop(handle, None)
        active.engine.forget(active.sequence.request_id)
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
        self._recent.note(request, error, self._metrics.model_name)
        is_aborted = any(sequence.finish_reason == "abort" for sequence in request.sequences)
        reason = error.reason if error is not None else "ABORTED" if is_aborted else ""
        request.call.end_request(request.params, request.num_prompt_tokens, request.metrics, reason)
        log.info(
            "request.finished",
            **request.call.context.log_fields(request.request_id),
            num_prompt_tokens=request.num_prompt_tokens,
            num_generation_tokens=request.metrics.num_generation_tokens,
            reasons=request.finish_reasons,
            error=None if error is None else error.message,
        )

    def _active_of(self, request: RequestState) -> list[ActiveSequence]:
        return [active for sequence in request.sequences if (active := self._active.get(sequence.handle)) is not None]
