"""OutputProcessor: engine steps in, RequestOutputs out.

Called by the engine clients, one step at a time per engine. For each step: one Detokenize message, one Decode call if
log-probabilities brought unknown tokens, then every sequence in turn. A sequence that fails ends alone. Knows no callers
beyond their collectors and no engines beyond their abort.
"""

import asyncio
import time
from collections.abc import Iterable

from tetrad.frontend.detokenizer_client import DetokenizerClient
from tetrad.frontend.logprobs import positions_of, texts_in_context
from tetrad.frontend.metrics import FrontendMetrics
from tetrad.frontend.outputs import PositionLogprobs
from tetrad.frontend.recent_requests import RecentRequests
from tetrad.frontend.request_state import RequestState
from tetrad.frontend.sequence import Sequence
from tetrad.frontend.step_tally import StepTally
from tetrad.frontend.step_update import PLAIN, Engine, Live, StepUpdate
from tetrad.frontend.steps import LogprobRows, RichUpdate, Step
from tetrad.frontend.tokenizer_client import TokenizerClient
from tetrad.services.errors import InternalError, TetradError
from tetrad.services.log import get_logger

log = get_logger()


class OutputProcessor:
    """All unfinished requests of this frontend.

    Args:
        detokenizer: the Detokenize stream.
        tokenizer: names the tokens of log-probabilities.
        eos_token_ids: ids that end generation; their stop reason is None.
        metrics: counted per step and per request.
        recent: remembers requests that ended; None: nobody wants to know.
    """

    def __init__(
        self,
        detokenizer: DetokenizerClient,
        tokenizer: TokenizerClient,
        metrics: FrontendMetrics,
        recent: RecentRequests | None = None,
        *,
        eos_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._detokenizer = detokenizer
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._recent = recent or RecentRequests(0)
        self.eos_token_ids = eos_token_ids
        self._live: dict[int, Live] = {}
        self._requests: dict[str, list[RequestState]] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._last_handle = 0
        self.num_steps = 0

    @property
    def num_unfinished_requests(self) -> int:
        """Requests that have not had their last output."""
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

    def move(self, sequence: Sequence, engine: Engine) -> None:
        """Note that another engine goes on with a sequence."""
        live = self._live.get(sequence.handle)
        if live is not None:
            live.engine = engine

    def fail(self, sequence: Sequence, error: TetradError) -> None:
        """End the request of a sequence with an error."""
        live = self._live.get(sequence.handle)
        if live is not None:
            self._fail(live, error)

    def fail_request(self, request: RequestState, error: TetradError) -> None:
        """End a request with an error; no-op if it is finished."""
        lives = self._lives_of(request)
        if lives:
            self._fail(lives[0], error)

    def fail_all(self, error: TetradError) -> None:
        """End every request with an error."""
        for live in list(self._live.values()):
            self._fail(live, error)

    async def wait_idle(self) -> None:
        """Wait until no request is unfinished."""
        await self._idle.wait()

    async def process(self, step: Step) -> None:
        """Take one engine step."""
        now_ns = time.time_ns()
        updates = [
            StepUpdate(live, ids, rich, now_ns)
            for handle, ids, rich in step.updates
            if (live := self._live.get(handle)) is not None
        ]
        self._metrics.observe_scheduler(step)
        if not updates:
            return
        self.num_steps += 1
        tally = StepTally()
        worded = [update for update in updates if update.live.sequence.params.detokenize]
        for update in updates:
            # What needs no tokenizer does not wait for one that may be lost.
            if not update.live.sequence.params.detokenize:
                self._apply_safely(update, step, tally)
        await self._detokenize(worded)
        await self._load_logprob_texts(worded)
        tally.now = time.time()
        for update in worded:
            self._apply_safely(update, step, tally)
        self._metrics.observe_step(tally)

    def _apply_safely(self, update: StepUpdate, step: Step, tally: StepTally) -> None:
        """Apply what came for one sequence, unless it ended meanwhile; a bug of ours ends this sequence alone."""
        try:
            if not update.live.sequence.finished:
                self._apply(update, step, tally)
        except Exception as error:  # other sequences of the step must have their tokens
            ids = update.live.request.call.context.log_fields(update.live.sequence.request_id)
            log.exception("step.not_applied", **ids)
            self._fail(update.live, InternalError(f"The server could not handle its own output: {error!r}"))

    async def _detokenize(self, updates: list[StepUpdate]) -> None:
        rows = [row for update in updates for row in update.rows]
        if not rows:
            return
        ends = [update.live.sequence.handle for update in updates if update.rows and update.rich.finish_reason is not None]
        started = time.perf_counter()
        try:
            deltas = iter(await self._detokenizer.append(rows, ends))
        except TetradError as error:
            for update in updates:
                update.deltas = [error] * len(update.rows)
            return
        self._metrics.observe_detokenized(time.perf_counter() - started)
        for update in updates:
            update.deltas = [next(deltas) for _ in update.rows]

    async def _load_logprob_texts(self, updates: list[StepUpdate]) -> None:
        ids: set[int] = set()
        for update in updates:
            for rows in (update.rich.logprobs, update.rich.prompt_logprobs):
                if rows is not None and update.live.sequence.params.detokenize:
                    ids.update(rows.token_ids)
        if not ids:
            return
        try:
            await self._tokenizer.load_token_texts(ids)
            for update in updates:
                await self._load_prompt_texts(update)
        except TetradError as error:
            # The numbers are worth more than the names.
            log.warning("logprobs.unnamed", reason=str(error))

    async def _load_prompt_texts(self, update: StepUpdate) -> None:
        rows = update.rich.prompt_logprobs
        if rows is not None and update.live.sequence.params.detokenize:
            # The first token has no log-probability, but may begin the character that the second ends.
            first = update.live.request.prompt_token_ids[:1]
            await self._tokenizer.load_token_texts(first)
            ids = first + rows.token_ids[:: rows.width]
            update.prompt_texts = (await texts_in_context(ids, self._tokenizer.text_of, self._decode))[1:]

    def _apply(self, update: StepUpdate, step: Step, tally: StepTally) -> None:
        live, rich = update.live, update.rich
        sequence, request = live.sequence, live.request
        if rich.error is not None or rich.finish_reason == "error":
            self._fail(live, rich.error or InternalError(f"The engine could not finish request {request.request_id}."))
            return
        num_before = len(sequence.output_token_ids)
        stopped_by_text = False
        if update.rows:
            for row, delta in zip(update.rows, update.deltas, strict=True):
                if isinstance(delta, TetradError):
                    self._fail(live, delta)
                    return
                sequence.add_token_ids(row.token_ids)
                if sequence.add_text(delta):
                    stopped_by_text = True
                    break
        if not stopped_by_text:
            # What has no text: everything if none is wanted, else the id that stopped the engine.
            sequence.add_token_ids(update.ids[len(sequence.output_token_ids) - num_before :])
        num_tokens = len(sequence.output_token_ids) - num_before
        self._take_facts(update, num_tokens)
        if num_tokens:
            self._count(live, num_tokens, step, tally)
        if stopped_by_text:
            live.engine.abort([sequence.request_id])
        elif rich.finish_reason is not None:
            sequence.finish(rich.finish_reason, self._stop_reason(sequence, rich))
        if sequence.finished:
            self._end(live, update.received_ns)
        request.deliver(sequence)
        if request.finished:
            self._retire(request)

    def _take_facts(self, update: StepUpdate, num_tokens: int) -> None:
        """Take what came besides tokens, and log-probabilities of the `num_tokens` ids that were kept."""
        request, rich = update.live.request, update.rich
        if rich is PLAIN:
            return
        if rich.num_cached_tokens is not None and request.num_cached_tokens is None:
            request.num_cached_tokens = rich.num_cached_tokens
        request.metrics.num_preemptions += rich.num_preemptions
        if rich.queued_time_s is not None and request.metrics.queued_time_s is None:
            request.metrics.queued_time_s, request.metrics.prefill_time_s = rich.queued_time_s, rich.prefill_time_s
        if rich.logprobs is not None:
            update.live.sequence.add_logprobs(self._positions(rich.logprobs, update.texts())[:num_tokens])
        if rich.prompt_logprobs is not None:
            request.set_prompt_logprobs(self._positions(rich.prompt_logprobs, update.prompt_texts))

    def _count(self, live: Live, num_tokens: int, step: Step, tally: StepTally) -> None:
        """Note when tokens were there."""
        sequence, request = live.sequence, live.request
        tally.add(sequence.last_token_time, num_tokens)
        sequence.last_token_time = tally.now
        if request.count_tokens(num_tokens, tally.now):
            request.metrics.received_time = step.received_time
            tally.first.append(request)

    def _positions(self, rows: LogprobRows, texts: list[str | None]) -> list[PositionLogprobs]:
        return positions_of(rows, self._tokenizer.text_of, texts)

    async def _decode(self, sequences: list[list[int]]) -> list[str]:
        return await self._tokenizer.decode(sequences, skip_special_tokens=False)

    def _stop_reason(self, sequence: Sequence, rich: RichUpdate) -> int | str | None:
        by_eos = rich.stop_reason in self.eos_token_ids and rich.stop_reason not in (sequence.params.stop_token_ids or ())
        return None if by_eos else rich.stop_reason

    def _fail(self, live: Live, error: TetradError) -> None:
        request = live.request
        for each in self._lives_of(request):
            each.engine.abort([each.sequence.request_id])
            each.sequence.finish("error")
            self._end(each)
        request.num_unfinished = 0
        request.collector.fail(error)
        self._retire(request, error)

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
