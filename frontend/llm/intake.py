"""Intake: admits a request, prepares it, chooses an engine core and sends it.

Owned by AsyncLLM. RequestIntake accepts generating requests, PoolingIntake (pooling_intake.py) pooling requests. All errors of
a request are raised before anything is sent; a refused request leaves no state. One event loop.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from tetrad.frontend.engine.client import EngineClient
from tetrad.frontend.engine.client_sequence import ActiveSequence, active_sequences
from tetrad.frontend.engine.prepared_request import PreparedRequest
from tetrad.frontend.llm.backends import Backends
from tetrad.frontend.llm.draining import Gate
from tetrad.frontend.llm.input_processor import InputProcessor, RenderedPrompt
from tetrad.frontend.llm.model_tasks import GENERATE, ModelTasks, use_without_pooling
from tetrad.frontend.llm.output_stream import OutputStream
from tetrad.frontend.media.features import MediaFeature, total_bytes
from tetrad.frontend.request.admission import Admission, Ticket
from tetrad.frontend.request.call_trace import CallTrace, current_call, program_call
from tetrad.frontend.request.deadlines import Deadline, earliest_deadline, within
from tetrad.frontend.request.new_pooling import NewPooling
from tetrad.frontend.request.new_request import NewRequest
from tetrad.frontend.request.prompt_scores import PARAMETER
from tetrad.frontend.request.prompts import estimated_prompt_tokens, has_media
from tetrad.frontend.request.request_state import RequestState
from tetrad.frontend.request.sampling_values import name_of_extra_args
from tetrad.frontend.routing.placement import Placement
from tetrad.services.errors import InvalidRequest, Unavailable, Unsupported, UnsupportedArgument
from tetrad.services.message_size import too_large
from tetrad.services.observability.tracing import Tracer, reason_of
from tetrad.services.rpc.columns import pack_u32

Inputs = TypeVar("Inputs")


class Intake(Generic[Inputs]):
    """Accepts the requests of one kind, generating or pooling, for one model.

    Args:
        gate: while it is closed, no request is accepted.
        tasks: the tasks of the server's models.
        admission: limits the number of requests.
        backends: the engines, and the processing of their outputs.
        tracer: the tracer for calls that a program makes in this process; other calls have their own.
        timeout_s: the longest time of a request in seconds; None: no limit.
    """

    def __init__(
        self,
        gate: Gate,
        tasks: ModelTasks,
        admission: Admission,
        backends: Backends,
        tracer: Tracer,
        timeout_s: float | None,
    ) -> None:
        self._gate, self._tasks, self._admission = gate, tasks, admission
        self._backends, self._engines = backends, backends.engines
        self._tracer = tracer
        self._timeout_s = timeout_s
        self._inputs: Inputs | None = None
        self._model = ""

    def open(self, inputs: Inputs, model: str) -> None:
        """Accept requests from now on; `model` is the model's name in spans."""
        self._inputs, self._model = inputs, model

    @contextlib.contextmanager
    def _admitted(
        self, request: NewRequest | NewPooling, num_tokens: int, num_requests: int = 1, ticket: Ticket | None = None
    ) -> Iterator[tuple[Ticket, CallTrace]]:
        """Admit a request and record its start; an error inside the context undoes both.

        Args:
            request: a request that has been checked.
            num_tokens: estimated number of prompt tokens of each sequence.
            num_requests: number of sequences.
            ticket: the request's share of the limits; None: it is reserved here.

        Raises:
            Overloaded: see Admission.admit.
        """
        ticket = ticket or self._admission.admit(num_requests=num_requests, num_tokens=num_tokens)
        call = current_call() or program_call(self._tracer, request.request_id, request.trace_headers or {})
        call.start_request(self._model)
        try:
            yield ticket, call
        except BaseException as error:
            ticket.release()
            call.fail(reason_of(error))
            call.release_request()
            raise


class RequestIntake(Intake[InputProcessor]):
    """Accepts every generating request of one model. See Intake for its arguments."""

    async def take(self, request: NewRequest) -> OutputStream:
        """Send a request to an engine and return its outputs. Errors: see AsyncLLM.add_request."""
        inputs, request = self._check(request)
        deadline = earliest_deadline(self._timeout_s)
        num_tokens = estimated_prompt_tokens(request.prompt)
        with self._admitted(request, num_tokens, request.params.n, request.ticket) as (ticket, call):
            prepared = await self._prepare(inputs, request, deadline, call)
            # Not earlier: an engine may be lost while a prompt is tokenized. Not later: the spans include the engine's work.
            placement, active = await self._activate(prepared, self._choose(prepared))
        prepared.state.hold(ticket)
        self._send(prepared.state, placement, active, deadline)
        return OutputStream(prepared.state, self._backends.requests)

    async def render(self, request: NewRequest) -> RenderedPrompt:
        """Return a request's prompt as ids, without sending it. Errors: see AsyncLLM.render."""
        inputs, request = self._check(request)
        # The admission is released when the rendering ends.
        with self._admission.admit(num_tokens=estimated_prompt_tokens(request.prompt)):
            async with within(earliest_deadline(self._timeout_s)):
                return await inputs.render(request)

    def _check(self, request: NewRequest) -> tuple[InputProcessor, NewRequest]:
        """Refuse a request that can be refused at once; else return the processor that prepares it, and the request."""
        inputs = self._gate.required(self._inputs)
        request.check()
        self._check_generates(request)
        request = request.with_transfer()
        self._check_extra_args(request)
        self._check_scores(request)
        if request.kv_transfer is not None:
            self._engines.check_transfer(request.kv_transfer)
        return inputs, request

    def _check_generates(self, request: NewRequest) -> None:
        """Raise InvalidRequest for a pooling model, Unsupported for a prompt without media if the model needs some.

        Both name the endpoint to use.
        """
        info = self._engines.info
        if info.is_encoder_decoder and not has_media(request.prompt):
            use, hint = use_without_pooling(transcribes=True), self._tasks.hint(GENERATE)
            text = f"The model does not support Completions API, and a prompt needs exactly 1 audio: {use}{hint}"
            raise Unsupported(text, field="model")
        facts = info.pooling
        if facts is not None and not facts.generates:
            hint = self._tasks.hint(GENERATE)
            raise InvalidRequest(f"This model does not generate: it pools. Use {facts.endpoint}.{hint}", field="model")

    def _check_extra_args(self, request: NewRequest) -> None:
        """Raise UnsupportedArgument for extra_args that no custom logits processor would read."""
        given = request.params.extra_args
        if given and not self._engines.info.logits_processors:
            name = name_of_extra_args(given)
            text = f"{name}={str(given)[:200]} is not supported: the server has no custom logits processors."
            raise UnsupportedArgument(text, field=name)

    def _check_scores(self, request: NewRequest) -> None:
        """Raise UnsupportedArgument for ids to score at the prompt's positions if the engine cores are of an older release."""
        if request.params.prompt_logprob_token_ids is not None and "prompt_scores" not in self._engines.info.capabilities:
            text = f"{PARAMETER} is not supported: the engine core, or its worker, is of a release without it."
            raise UnsupportedArgument(text, field=PARAMETER)

    async def _prepare(
        self, inputs: InputProcessor, request: NewRequest, deadline: Deadline | None, call: CallTrace
    ) -> PreparedRequest:
        with call.working():
            async with within(deadline):
                prepared = await inputs.prepare(request, deadline, new_handle=self._backends.requests.new_handle)
        self._gate.check_open()
        self._check_lora(prepared)
        prepared.state.call = call
        return prepared

    def _check_lora(self, prepared: PreparedRequest) -> None:
        """Raise Unsupported for a LoRA adapter if the engine cores do not support LoRA; prompt adapters are already applied."""
        lora = prepared.state.sequences[0].lora_request
        if lora is not None and not self._engines.info.supports_lora:
            raise Unsupported(f"Got lora_request {lora.lora_name} but LoRA is not enabled!", field="lora_request")

    def _choose(self, prepared: PreparedRequest) -> Placement:
        # The ids of a prompt of embeddings identify no prefix cache entry.
        ids = pack_u32(prepared.state.prompt_token_ids) if prepared.embeds is None else b""
        lora = prepared.state.sequences[0].lora_request
        lora_name, features = lora.lora_name if lora else "", prepared.state.features
        return self._engines.choose(
            prepared.data_parallel_rank, ids, prepared.cache_salt, lora_name, features, prepared.kv_transfer
        )

    async def _activate(self, prepared: PreparedRequest, placement: Placement) -> tuple[Placement, list[ActiveSequence]]:
        """Return the sequences with their messages, and where to run them; their spans begin here.

        Many sequences are prepared in several turns of the event loop. If the engine is lost meanwhile, another one is chosen.

        Raises:
            InvalidRequest: a sequence does not fit into a message.
            Overloaded, Unavailable: the request can no longer be accepted.
        """
        state = prepared.state
        for sequence in state.sequences:
            sequence.span = state.call.start_sequence(sequence)
        try:
            active = await active_sequences(prepared, placement.engine)
            self._gate.check_open()
            if not placement.engine.connected:
                placement = self._choose(prepared)
            engine = placement.engine
            _check_media_bytes(state.features, engine)
            largest = max(each.most_bytes for each in active)
            if largest > engine.max_message_bytes:
                what = "The request, with its images and" if state.features else "The request, with"
                raise too_large(f"{what} all that may be generated,", largest, engine.max_message_bytes)
        except BaseException:
            for sequence in state.sequences:
                state.call.end_sequence(sequence, received_ns=None)
            raise
        for each in active:
            each.engine = engine
        return placement, active

    def _send(self, state: RequestState, placement: Placement, active: list[ActiveSequence], deadline: Deadline | None) -> None:
        state.metrics.submitted_time = time.time()
        self._backends.requests.add(state, active)
        if deadline is not None:
            state.expire_after(deadline.remaining_s, lambda: self._backends.requests.fail_request(state, deadline.error()))
        try:
            self._backends.dispatch.send(placement, active)
        except Unavailable:
            self._backends.requests.abort_request(state)
            raise


def _check_media_bytes(features: Sequence[MediaFeature], engine: EngineClient) -> None:
    """Refuse images that an engine core cannot hold even without other requests; it holds equal images once."""
    limit = 0 if engine.info is None else engine.info.max_media_bytes
    num_bytes = total_bytes({feature.identifier: feature for feature in features}.values())
    if num_bytes > limit > 0:
        text = f"The images of the request take {num_bytes} bytes after preprocessing; the engine core holds at most {limit}."
        raise InvalidRequest(text, field="messages", reason="MEDIA_TOO_LARGE")
