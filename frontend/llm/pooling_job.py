"""PoolingJob: sends the parts of one pooling request's inputs to engine cores and collects their answers.

Made by the pooling intake. One event loop.
"""

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace

from tetrad.frontend.engine.client_sequence import pooling_sequence
from tetrad.frontend.engine.prepared_request import PreparedRequest
from tetrad.frontend.llm.backends import Backends
from tetrad.frontend.llm.input_parts import InputParts
from tetrad.frontend.llm.pooling_window import PoolingTurn, PoolingWindow
from tetrad.frontend.request import sequence as sequences
from tetrad.frontend.request.admission import Ticket
from tetrad.frontend.request.call_trace import CallTrace
from tetrad.frontend.request.deadlines import Deadline
from tetrad.frontend.request.new_pooling import NewPooling
from tetrad.frontend.request.pooling import PoolingRequestOutput
from tetrad.frontend.request.pooling_state import PoolingState
from tetrad.services.errors import FailedPrecondition, InternalError, InvalidRequest, Unavailable
from tetrad.services.message_size import too_large
from tetrad.services.rpc.columns import pack_u32


class PoolingJob:
    """One pooling request in progress.

    Args:
        new: the request.
        parts: the parts of its inputs; each part is sent as one sequence.
        salts: the cache_salt of each input.
        backends: the engines and the output processor.
        window: decides when a part is sent.
        deadline: the deadline that the engines keep; None: none.
        call: the client call of the request.

    Attributes:
        state: the state of the request.
    """

    def __init__(
        self,
        new: NewPooling,
        parts: InputParts,
        salts: Sequence[str],
        backends: Backends,
        window: PoolingWindow,
        *,
        deadline: Deadline | None,
        call: CallTrace,
    ) -> None:
        self._engines, self._requests = backends.engines, backends.requests
        self._metrics, self._deadline, self._on_answer = backends.metrics, deadline, new.on_answer
        self._parts, self._salts, prompts = parts, salts, parts.prompts
        sizes = list(map(len, prompts))
        self._turn = PoolingTurn(window, sizes, self._send)
        self.state = PoolingState(new.request_id, sum(sizes), arrival_time=new.arrival_time, on_end=self._note_end)
        self.state.call = call
        self._prepared = PreparedRequest(
            state=self.state,
            eos_token_id=None,
            stop_token_ids=[],
            bad_words_token_ids=[],
            thinking=None,
            priority=new.priority,
            cache_salt="",  # each input has its own
            data_parallel_rank=None,
        )
        internal_id = f"{new.request_id}-{secrets.token_hex(4)}"
        for place, (prompt, each, owner) in enumerate(zip(prompts, parts.params, parts.owners, strict=True)):
            name = internal_id if len(prompts) == 1 else f"{place}_{internal_id}"
            self.state.add_sequence(
                sequences.Sequence(
                    name,
                    self._requests.new_handle(),
                    place,
                    prompt,
                    self.state.params,
                    seed=0,
                    max_tokens=1,
                    deadline=deadline,
                    lora_request=new.lora_requests[owner] if new.lora_requests else None,
                    pooling=each,
                )
            )

    def start(self, ticket: Ticket) -> None:
        """Send the inputs as the window allows; `ticket` is the request's admission."""
        state = self.state
        state.hold(ticket)
        state.metrics.submitted_time = time.time()
        self._requests.add(state, ())
        if self._deadline is not None:
            error = self._deadline.error()
            state.expire_after(self._deadline.remaining_s, lambda: self._requests.fail_request(state, error))
        self._turn.start()

    def abort(self) -> None:
        """End the request; `answers` then raises FailedPrecondition. No-op if it is finished."""
        self._requests.abort_request(self.state)

    async def answers(self) -> list[PoolingRequestOutput]:
        """Return the answers to all inputs, in order, when all have one; cancelling the call aborts the request."""
        try:
            await self.state.collector.get()
        finally:
            self._turn.end()
            if not self.state.finished:
                self._requests.abort_request(self.state)
        answers = self._parts.joined([self._answer(sequence) for sequence in self.state.sequences])
        self._metrics.observe_pooled(self.state)
        return answers

    def _send(self, place: int) -> None:
        """Send one part to an engine core. The request fails if none is available or the part is too large for a message."""
        sequence = self.state.sequences[place]
        if sequence.finished or self.state.finished:  # after a failure, sequences that were not sent are unfinished
            return
        column, salt = pack_u32(sequence.prompt_token_ids), self._salts[self._parts.owners[place]]
        try:
            lora = sequence.lora_request
            engine = self._engines.choose(None, column, salt, lora.lora_name if lora else "").engine
            sequence.span = self.state.call.start_sequence(sequence)
            active = pooling_sequence(sequence, replace(self._prepared, cache_salt=salt), engine, column)
            if active.most_bytes > engine.max_message_bytes:
                self.state.call.end_sequence(sequence, received_ns=None)
                raise too_large("The input", active.most_bytes, engine.max_message_bytes, field="input")
            self._requests.add_sequence(active)
            engine.add(active)
        except (Unavailable, InvalidRequest) as error:
            self._requests.fail_request(self.state, error)

    def _note_end(self, sequence: sequences.Sequence) -> None:
        self._turn.note_answer(sequence.index)
        if sequence.pooled is not None and self._parts.note_answer(sequence.index) and self._on_answer is not None:
            self._on_answer()

    def _answer(self, sequence: sequences.Sequence) -> PoolingRequestOutput:
        if sequence.finish_reason == "abort":
            raise FailedPrecondition("The request was aborted.", reason="ABORTED")
        if sequence.pooled is None:
            raise InternalError("The engine core finished a pooling request without an answer.")
        return PoolingRequestOutput(
            self.state.request_id, sequence.pooled, sequence.prompt_token_ids, sequence.num_cached_tokens
        )
