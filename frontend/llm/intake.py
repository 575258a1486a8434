"""RequestIntake: takes a request in: admit, prepare, choose an engine, send.

Owned by AsyncLLM. Whatever is wrong with a request, or stands in its way, is found before anything is sent; a request that is
refused leaves nothing behind. One event loop.
"""

import time

from tetrad.frontend.engine.client import EngineClient
from tetrad.frontend.engine.client_adds import Unfinished, unfinished_of
from tetrad.frontend.llm.backends import Backends
from tetrad.frontend.llm.input_processor import InputProcessor, PreparedRequest
from tetrad.frontend.llm.output_stream import OutputStream
from tetrad.frontend.llm.readiness import draining_error, starting_error
from tetrad.frontend.request.admission import Admission
from tetrad.frontend.request.call_trace import CallTrace, current_call, program_call
from tetrad.frontend.request.deadlines import Deadline, earliest_deadline, within
from tetrad.frontend.request.new_request import NewRequest
from tetrad.frontend.request.prompts import estimated_prompt_tokens
from tetrad.frontend.request.request_state import RequestState
from tetrad.services.columns import pack_u32
from tetrad.services.errors import Unavailable, Unsupported
from tetrad.services.message_size import too_large
from tetrad.services.tracing import Tracer, reason_of


class RequestIntake:
    """The way of every request into this frontend.

    Args:
        admission: limits how many there are.
        backends: the engines, and what processes their outputs.
        tracer: of calls that a program makes in this process; others bring theirs.
        timeout_s: most seconds that a request may take; None: as many as it likes.
    """

    def __init__(self, admission: Admission, backends: Backends, tracer: Tracer, timeout_s: float | None) -> None:
        self._admission = admission
        self._engines, self._requests = backends.engines, backends.requests
        self._tracer = tracer
        self._timeout_s = timeout_s
        self._inputs: InputProcessor | None = None
        self._model = ""
        self._is_closed = False

    def open(self, inputs: InputProcessor, model: str) -> None:
        """Take requests from now on, unless it is closed; `model` is what spans call it."""
        self._inputs, self._model = inputs, model

    def close(self) -> None:
        """Take none any more; those that are being prepared are refused."""
        self._is_closed = True

    async def take(self, request: NewRequest) -> OutputStream:
        """Send a request to an engine and return its outputs. Errors: see AsyncLLM.add_request."""
        inputs = self._check(request)
        deadline = earliest_deadline(self._timeout_s)
        num_tokens = estimated_prompt_tokens(request.prompt)
        ticket = self._admission.admit(num_requests=request.params.n, num_tokens=num_tokens)
        call = current_call() or program_call(self._tracer, request.request_id, request.trace_headers)
        call.start_request(self._model)
        try:
            prepared = await self._prepare(inputs, request, deadline, call)
            # Not before: an engine may be lost while a prompt is tokenized. Nor later: the spans end with what engines do.
            engine = self._choose(prepared)
            messages = self._messages(prepared, engine.max_message_bytes)
        except BaseException as error:
            ticket.release()
            call.fail(reason_of(error))
            call.release_request()
            raise
        prepared.state.hold(ticket)
        self._send(prepared.state, engine, messages, deadline)
        return OutputStream(prepared.state, self._requests)

    def _check(self, request: NewRequest) -> InputProcessor:
        """Refuse what can be refused at once; return what prepares the others."""
        self._refuse_if_closed()
        request.check()
        lora = request.lora_request
        if lora is not None and not self._engines.info.supports_lora:
            raise Unsupported(f"Got lora_request {lora.lora_name} but LoRA is not enabled!", field="lora_request")
        if self._inputs is None:
            raise starting_error()
        return self._inputs

    async def _prepare(
        self, inputs: InputProcessor, request: NewRequest, deadline: Deadline | None, call: CallTrace
    ) -> PreparedRequest:
        with call.working():
            async with within(deadline):
                prepared = await inputs.prepare(request, deadline, new_handle=self._requests.new_handle)
        self._refuse_if_closed()
        prepared.state.call = call
        return prepared

    def _choose(self, prepared: PreparedRequest) -> EngineClient:
        told = prepared.instructions
        return self._engines.choose(told.data_parallel_rank, pack_u32(prepared.state.prompt_token_ids), told.cache_salt)

    def _messages(self, prepared: PreparedRequest, most_bytes: int) -> list[Unfinished]:
        """Return each sequence with what its engine is sent; its span begins here. InvalidRequest: one fits no message."""
        state = prepared.state
        for sequence in state.sequences:
            sequence.span = state.call.start_sequence(sequence)
        messages = unfinished_of(state.sequences, prepared.instructions)
        largest = max(each.most_bytes for each in messages)
        if largest > most_bytes:
            for sequence in state.sequences:
                state.call.end_sequence(sequence, received_ns=None)
            raise too_large("The request, with all that may be generated,", largest, most_bytes)
        return messages

    def _send(self, state: RequestState, engine: EngineClient, messages: list[Unfinished], deadline: Deadline | None) -> None:
        state.metrics.submitted_time = time.time()
        self._requests.add(state, engine)
        if deadline is not None:
            state.expire_after(deadline.remaining_s, lambda: self._requests.fail_request(state, deadline.error()))
        for message in messages:
            try:
                engine.add(message)
            except Unavailable:
                self._requests.abort_request(state)
                raise

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise draining_error()
