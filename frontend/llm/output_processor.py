"""OutputProcessor: converts engine steps to RequestOutputs.

Called by the engine clients, one step at a time per engine core. For each step it sends one Detokenize message, and one Decode
call for log-probabilities of unknown tokens, then updates every sequence. A StepUpdate is the part of a step for one sequence:
the ids that have text, one by one where their texts are needed one by one. An error of one sequence ends this sequence only. Of
callers the processor knows only their collectors, of engines only how to abort.
"""

import time

from tetrad.frontend.engine.client_sequence import ActiveSequence
from tetrad.frontend.llm.large_calls import LargeCalls
from tetrad.frontend.llm.unfinished_requests import UnfinishedRequests
from tetrad.frontend.net.logged_count import LoggedCount
from tetrad.frontend.observability.metrics import FrontendMetrics
from tetrad.frontend.observability.step_metrics import StepTally
from tetrad.frontend.request.call_trace import CallTrace
from tetrad.frontend.request.logprobs import flat_positions_of, positions_of, texts_in_context
from tetrad.frontend.request.position_logprobs import Positions
from tetrad.frontend.request.sequence import Sequence
from tetrad.frontend.request.steps import LogprobRows, RichUpdate, Step
from tetrad.frontend.tokenizer.client import TokenizerClient
from tetrad.frontend.tokenizer.detokenizer_client import DetokenizerClient
from tetrad.frontend.tokenizer.wire import Row
from tetrad.services.errors import InternalError, TetradError
from tetrad.services.log import get_logger

log = get_logger()


PLAIN = RichUpdate()
"""The update of a step that has ids only."""


class StepUpdate:
    """The outputs of one step for one sequence, received at `received_ns`. The text deltas of its rows are added later."""

    __slots__ = ("active", "deltas", "ids", "prompt_texts", "received_ns", "rich", "rows")

    def __init__(self, active: ActiveSequence, ids: list[int], rich: RichUpdate | None, received_ns: int) -> None:
        self.received_ns = received_ns
        self.active = active
        self.ids = ids
        self.rich = rich or PLAIN
        self.rows = _rows(active.sequence, ids, self.rich)
        self.deltas: list[str | TetradError] = []
        self.prompt_texts: list[str | None] = []

    def texts(self) -> list[str | None]:
        """Return the text of each row; None for a row of several ids or without text."""
        added = zip(self.rows, self.deltas, strict=False)
        return [delta if isinstance(delta, str) else None for row, delta in added if len(row.token_ids) == 1]


def _rows(sequence: Sequence, ids: list[int], rich: RichUpdate) -> list[Row]:
    """Return the ids to detokenize: one row of all ids, or one row per token where the text of each token is needed."""
    params = sequence.params
    if not params.detokenize:
        return []
    by_token = sequence.has_stops or sequence.logprobs is not None
    if rich.finish_reason == "stop" and not params.include_stop_str_in_output:
        # The id that stopped the engine is part of the ids, not of the text.
        ids = ids[:-1]
        # An empty row makes the detokenizer flush the bytes that it has held back. It is a row of its own also behind other
        # ids: the texts of these must not depend on whether they are in the same step.
        if not ids:
            return [Row(sequence, [])] if sequence.output_token_ids else []
        if by_token:
            return [*(Row(sequence, [token_id]) for token_id in ids), Row(sequence, [])]
    if by_token and len(ids) > 1:
        return [Row(sequence, [token_id]) for token_id in ids]
    return [Row(sequence, ids)] if ids or rich.finish_reason is not None else []


class OutputProcessor:
    """Delivers the outputs of a frontend's engine cores to their requests.

    Args:
        requests: the unfinished requests.
        detokenizer: client of the Detokenize stream.
        tokenizer: gives the texts of the tokens in log-probabilities.
        metrics: updated once per step.

    Attributes:
        eos_token_ids: ids that end generation; their stop reason is None.
        num_steps: steps with outputs for this frontend's sequences, since the start.
    """

    def __init__(
        self,
        requests: UnfinishedRequests,
        detokenizer: DetokenizerClient,
        tokenizer: TokenizerClient,
        metrics: FrontendMetrics,
    ) -> None:
        self._requests = requests
        self._detokenizer = detokenizer
        self._tokenizer = tokenizer
        self._metrics = metrics
        self.eos_token_ids: frozenset[int] = frozenset()
        self.num_steps = 0
        self._strays = LoggedCount("engine.unknown_handle")
        self._large_calls: dict[int, LargeCalls] = {}

    def fail(self, sequence: Sequence, error: TetradError) -> None:
        """End the request of a sequence with an error; no-op if it is finished."""
        self._requests.fail(sequence, error)

    async def process(self, step: Step) -> None:
        """Process one engine step; outputs of calls with many sequences are queued and processed later."""
        self._metrics.observe_scheduler(step)
        self._note_strays(step)
        self.num_steps += any(self._requests.find(handle) is not None for handle, _, _ in step.updates)
        await self._process(await self._large_calls_of(step.engine_index).take_from(step))

    async def settle(self, engine_index: int) -> None:
        """Wait until all outputs of an engine's steps are processed; raises the error of a failed part."""
        if (large_calls := self._large_calls.pop(engine_index, None)) is not None:
            await large_calls.settle()

    def _large_calls_of(self, engine_index: int) -> LargeCalls:
        found = self._large_calls.get(engine_index)
        if found is None:
            found = self._large_calls[engine_index] = LargeCalls(self._process, self._call_of)
        return found

    def _call_of(self, handle: int) -> CallTrace | None:
        active = self._requests.find(handle)
        return None if active is None else active.request.call

    async def _process(self, step: Step) -> None:
        now_ns = time.time_ns()
        updates = [
            StepUpdate(active, ids, rich, now_ns)
            for handle, ids, rich in step.updates
            if (active := self._requests.find(handle)) is not None
        ]
        if not updates:
            return
        tally = StepTally()
        worded = [update for update in updates if update.active.sequence.params.detokenize]
        for update in updates:
            # Updates without text do not wait for the tokenizer, which may be unreachable.
            if not update.active.sequence.params.detokenize:
                self._apply_safely(update, step, tally)
        await self._detokenize(worded)
        await self._load_logprob_texts(worded)
        tally.now = time.time()
        for update in worded:
            self._apply_safely(update, step, tally)
        self._metrics.steps.observe(tally)

    def _note_strays(self, step: Step) -> None:
        """Count outputs for handles that were never issued; outputs for sequences that have just ended are normal."""
        for handle, _, _ in step.updates:
            if self._requests.find(handle) is None and not self._requests.has_issued(handle):
                self._strays.add(handle=handle, engine=step.engine_index)

    def _apply_safely(self, update: StepUpdate, step: Step, tally: StepTally) -> None:
        """Apply an update to its sequence, unless this has ended meanwhile; an unexpected exception fails this request only."""
        try:
            if not update.active.sequence.finished:
                self._apply(update, step, tally)
        except Exception as error:  # the step's other sequences must still receive their tokens
            ids = update.active.request.call.context.log_fields(update.active.sequence.request_id)
            log.exception("step.not_applied", **ids)
            self._requests.fail_request(
                update.active.request, InternalError(f"The server could not handle its own output: {error!r}")
            )

    async def _detokenize(self, updates: list[StepUpdate]) -> None:
        rows = [row for update in updates for row in update.rows]
        if not rows:
            return
        ends = [update.active.sequence.handle for update in updates if update.rows and update.rich.finish_reason is not None]
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
        """Load the texts of the tokens in the log-probabilities; without a tokenizer, these updates' requests fail."""
        ids: set[int] = set()
        named: list[StepUpdate] = []
        for update in updates:
            columns = [rows for rows in (update.rich.logprobs, update.rich.prompt_logprobs) if rows is not None]
            if columns and not update.active.sequence.finished:
                named.append(update)
                if not self._tokenizer.knows_all_texts:  # else a set of 49,152 ids would be built for each token without use
                    ids.update(*(rows.token_ids for rows in columns))
        try:
            if ids:
                await self._tokenizer.load_token_texts(ids)
            for update in named:
                await self._load_prompt_texts(update)
        except TetradError as error:
            # An answer with ids instead of texts would differ from the answer of a run without failures.
            for update in named:
                self._requests.fail_request(update.active.request, error)

    async def _load_prompt_texts(self, update: StepUpdate) -> None:
        rows = update.rich.prompt_logprobs
        if rows is not None:
            # The first token has no log-probability, but may be the first part of a character that the second token completes.
            first = update.active.request.prompt_token_ids[:1]
            await self._tokenizer.load_token_texts(first)
            ids = first + rows.token_ids[:: rows.width]
            update.prompt_texts = (await texts_in_context(ids, self._tokenizer.text_of, self._decode))[1:]

    def _apply(self, update: StepUpdate, step: Step, tally: StepTally) -> None:
        active, rich = update.active, update.rich
        sequence, request = active.sequence, active.request
        if rich.error is not None or rich.finish_reason == "error":
            error = rich.error or InternalError(f"The engine could not finish request {request.request_id}.")
            self._requests.fail_request(request, error)
            return
        num_before = len(sequence.output_token_ids)
        stopped_by_text = False
        if update.rows:
            for row, delta in zip(update.rows, update.deltas, strict=True):
                if isinstance(delta, TetradError):
                    self._requests.fail_request(request, delta)
                    return
                sequence.add_token_ids(row.token_ids)
                if sequence.add_text(delta):
                    stopped_by_text = True
                    break
        if not stopped_by_text:
            # Ids without text: all ids if there is no detokenization, else the id that stopped the request.
            sequence.add_token_ids(update.ids[len(sequence.output_token_ids) - num_before :])
        num_tokens = len(sequence.output_token_ids) - num_before
        self._take_facts(update, num_tokens)
        if step.weight_version or sequence.weight_versions:
            sequence.note_weights(step.weight_version, num_before)
        if num_tokens:
            self._count(active, num_tokens, step, tally)
        if stopped_by_text:
            active.engine.abort([sequence.request_id])
        elif rich.finish_reason is not None:
            sequence.finish(rich.finish_reason, self._stop_reason(sequence, rich))
        if sequence.finished:
            self._requests.finish(active, update.received_ns)
        else:
            request.deliver(sequence)

    def _take_facts(self, update: StepUpdate, num_tokens: int) -> None:
        """Apply the parts of an update besides tokens, and the log-probabilities of the `num_tokens` ids that were kept."""
        request, rich = update.active.request, update.rich
        if rich is PLAIN:
            return
        if rich.num_cached_tokens is not None and request.num_cached_tokens is None:
            request.num_cached_tokens = request.prefilled.num_cached(rich.num_cached_tokens, rich.num_external_tokens)
        request.kv_transfer = rich.kv_transfer or request.kv_transfer
        request.metrics.num_preemptions += rich.num_preemptions
        if rich.queued_time_s is not None and request.metrics.queued_time_s is None:
            request.metrics.queued_time_s = rich.queued_time_s + request.prefilled.queued_time_s
            request.metrics.prefill_time_s = (rich.prefill_time_s or 0.0) + request.prefilled.prefill_time_s
        if rich.pooled is not None:
            update.active.sequence.pooled = rich.pooled
            update.active.sequence.num_cached_tokens = rich.num_cached_tokens or 0
        if rich.logprobs is not None:
            update.active.sequence.add_logprobs(self._positions(update, rich.logprobs, update.texts())[:num_tokens])
        if rich.spec_decode_metrics is not None:
            update.active.sequence.spec_decode_metrics = rich.spec_decode_metrics
        if rich.prompt_scores is not None:
            request.set_prompt_scores(rich.prompt_scores)
        if rich.prompt_logprobs is not None:
            request.set_prompt_logprobs(self._positions(update, rich.prompt_logprobs, update.prompt_texts))

    def _count(self, active: ActiveSequence, num_tokens: int, step: Step, tally: StepTally) -> None:
        """Record the arrival of tokens in the tally, the sequence and the request's metrics."""
        sequence, request = active.sequence, active.request
        tally.add(sequence.last_token_time, num_tokens)
        sequence.last_token_time = tally.now
        if request.count_tokens(num_tokens, tally.now):
            request.metrics.received_time = step.received_time
            tally.first.append(request)

    def _positions(self, update: StepUpdate, rows: LogprobRows, texts: list[str | None]) -> Positions:
        # Texts that other requests have loaded are no part of an answer without text: it would depend on them.
        text_of = self._tokenizer.text_of if update.active.sequence.params.detokenize else _no_text
        make = flat_positions_of if update.active.sequence.params.flat_logprobs else positions_of
        return make(rows, text_of, texts)

    async def _decode(self, sequences: list[list[int]]) -> list[str]:
        return await self._tokenizer.decode(sequences, skip_special_tokens=False)

    def _stop_reason(self, sequence: Sequence, rich: RichUpdate) -> int | str | None:
        by_eos = rich.stop_reason in self.eos_token_ids and rich.stop_reason not in (sequence.params.stop_token_ids or ())
        return None if by_eos else rich.stop_reason


def _no_text(_: int) -> None:
    return None
