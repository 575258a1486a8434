"""AsyncLLM: requests in, outputs out. The one life of a request that HTTP, gRPC and the LLM class share.

Connects to one or more tokenizers and engine cores. Everything wrong with a request is found here, before anything is
scheduled. One event loop: every method must be called on the loop that `connect` ran on.
"""

import asyncio
import functools
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any, Self

from tetrad.frontend.admission import Admission, estimated_tokens
from tetrad.frontend.backends import Backends
from tetrad.frontend.call_trace import current_call, program_call
from tetrad.frontend.chat.formats import ChatFormats, choose_chat_formats
from tetrad.frontend.chat.messages import num_chars, plain_messages
from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.deadlines import earliest_deadline, within
from tetrad.frontend.engine_admin_client import EngineAdminClient
from tetrad.frontend.facts import EngineInfo, TokenizerInfo
from tetrad.frontend.input_processor import InputProcessor, PromptOptions
from tetrad.frontend.limits import Limits
from tetrad.frontend.metrics import FrontendMetrics, counting_errors
from tetrad.frontend.model_names import ModelNames
from tetrad.frontend.output_stream import OutputStream
from tetrad.frontend.outputs import LoRARequest, RequestOutput
from tetrad.frontend.prompts import PromptType, TokensPrompt, estimated_prompt_tokens, normalize_prompt
from tetrad.frontend.sampling_params import SamplingParams
from tetrad.frontend.tokenizer_bundle_client import BundleChunk
from tetrad.frontend.wire import engine_request
from tetrad.services.columns import pack_u32
from tetrad.services.errors import InvalidRequest, Unavailable, Unsupported
from tetrad.services.log import get_logger
from tetrad.services.tracing import open_tracer, reason_of

log = get_logger()

_MAX_I32 = 2**31 - 1


class AsyncLLM:
    """An LLM behind services. Use `await AsyncLLM.connect(settings)`; close it, or use it as an async context manager."""

    def __init__(self, settings: FrontendSettings) -> None:
        self._settings = settings
        self.admission = Admission(settings.max_num_requests, settings.max_num_queued_tokens)
        self.metrics = FrontendMetrics(
            prefix=settings.metrics_prefix, model_name=next(iter(settings.served_model_names), settings.model)
        )
        self.metrics.watch(self.admission)
        self.tracer = open_tracer("frontend", settings.otlp_endpoint)
        backends = self._backends = Backends(settings, self.metrics)
        self._tokenizer, self._processor, self._engines = backends.tokenizer, backends.processor, backends.engines
        self.readiness = backends.readiness
        self.engine_admin = EngineAdminClient(
            functools.partial(self._engines.admin_endpoints, settings.engine_admin_targets),
            max_message_bytes=settings.max_message_bytes,
            tls=settings.tls,
        )
        self._draining = False
        self._tokenizer_info: TokenizerInfo | None = None
        self._inputs: InputProcessor | None = None
        self._names: ModelNames | None = None
        self.chat_formats = ChatFormats()

    @classmethod
    async def connect(cls, settings: FrontendSettings) -> Self:
        """Return an AsyncLLM whose tokenizer and engines are ready.

        Raises:
            Unavailable: they are not after `settings.ready_timeout_s`.
            FailedPrecondition: an engine speaks another revision of the contract.
        """
        llm = cls(settings)
        try:
            await llm.start()
        except BaseException:
            await llm.close()
            raise
        return llm

    async def start(self) -> None:
        """Connect; once. Until this returns requests are refused with Unavailable. Raises as `connect` does."""
        info = await self._backends.start(self._settings.ready_timeout_s)
        self._tokenizer_info = info
        self._processor.eos_token_ids = info.eos_token_ids
        engine = self._engines.info
        # Models pad their embedding: ids beyond the tokenizer's have no text.
        vocab_size = min(filter(None, (info.vocab_size, engine.vocab_size)))
        limits = Limits(self._settings, max_model_len=self._engines.max_model_len, vocab_size=vocab_size)
        self.chat_formats = await choose_chat_formats(
            self._settings.tool_call_parser,
            self._settings.reasoning_parser,
            info.chat_template,
            functools.partial(self._tokenizer.encode, add_special_tokens=False),
        )
        self._inputs = InputProcessor(self._tokenizer, info, limits, self.chat_formats)
        root = self._settings.model or info.model or engine.model
        self._names = ModelNames(self._settings.served_model_names or (root,), root=root)
        self.readiness.note_started()
        log.info("frontend.ready", model=root, max_model_len=limits.max_model_len, num_engines=len(self._engines))

    @property
    def backends(self) -> Backends:
        """The services behind, for whoever shows how they are."""
        return self._backends

    @property
    def engine_info(self) -> EngineInfo:
        """What the first engine said of itself last."""
        return self._engines.info

    @property
    def tokenizer_info(self) -> TokenizerInfo:
        """What the tokenizer said of itself."""
        if self._tokenizer_info is None:
            raise _starting()
        return self._tokenizer_info

    @property
    def started(self) -> bool:
        """Whether `start` has returned once."""
        return self._inputs is not None

    @property
    def model_names(self) -> ModelNames:
        """The names clients may ask for."""
        if self._names is None:
            raise _starting()
        return self._names

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus output, in tokens."""
        return self._require_inputs().limits.max_model_len

    @property
    def num_engines(self) -> int:
        """Engine cores that requests go to."""
        return len(self._engines)

    @property
    def num_unfinished_requests(self) -> int:
        """Requests that have not had their last output."""
        return self._processor.num_unfinished_requests

    @property
    def num_engine_steps(self) -> int:
        """Engine steps that brought something, since start."""
        return self._processor.num_steps

    @property
    def num_detokenize_messages(self) -> int:
        """Messages sent on the Detokenize stream, since start: at most one a step."""
        return self._backends.detokenizer.num_messages

    @property
    def num_add_messages(self) -> int:
        """AddRequests messages sent, since start: at most one a loop tick and engine."""
        return self._engines.num_add_messages

    async def check_health(self) -> None:
        """Return if requests can be served now; Unavailable, saying why, otherwise."""
        self.readiness.report().check()

    def default_sampling_fields(self) -> dict[str, Any]:
        """Return the sampling defaults of the model's authors (generation config), by SamplingParams' names."""
        if not self._settings.use_generation_config:
            return {}
        config = self.tokenizer_info.generation_config
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        return {name: config[name] for name in names if config.get(name) is not None}

    def get_default_sampling_params(self) -> SamplingParams:
        """Return SamplingParams with the defaults of the model's authors."""
        return SamplingParams(**self.default_sampling_fields())

    async def generate(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
        add_special_tokens: bool = True,
        cache_salt: str = "",
        data_parallel_rank: int | None = None,
        trace_headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the outputs of a request; leaving the loop early aborts it. Arguments and errors: see `add_request`."""
        stream = await self.add_request(
            request_id,
            prompt,
            sampling_params,
            priority=priority,
            lora_request=lora_request,
            add_special_tokens=add_special_tokens,
            cache_salt=cache_salt,
            data_parallel_rank=data_parallel_rank,
            trace_headers=trace_headers,
        )
        try:
            async for output in stream:
                yield output
        finally:
            stream.close()

    @counting_errors
    async def add_request(
        self,
        request_id: str,
        prompt: PromptType,
        sampling_params: SamplingParams,
        *,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
        add_special_tokens: bool = True,
        truncate_prompt_tokens: int | None = None,
        truncation_side: str = "left",
        cache_salt: str = "",
        data_parallel_rank: int | None = None,
        arrival_time: float | None = None,
        max_logprobs: int | None = None,
        trace_headers: Mapping[str, str] | None = None,
    ) -> OutputStream:
        """Check a request, tokenize its prompt and send it to an engine.

        Args:
            request_id: the caller's name for it; several requests may share one, and `abort` then ends them all.
            prompt: text, ids, TextPrompt or TokensPrompt.
            sampling_params: copied.
            priority: larger is more urgent.
            lora_request: adapter to run with.
            add_special_tokens: let the tokenizer add BOS and the like to text.
            truncate_prompt_tokens: keep so many tokens of the prompt; -1: as many as fit besides max_tokens.
            truncation_side: which end is dropped, "left" or "right".
            cache_salt: separates prefix caches of different tenants.
            data_parallel_rank: pins the request to an engine.
            arrival_time: wall clock in seconds; now, if not given.
            max_logprobs: instead of the server's limit, for a caller that limits what its clients ask for in another way.
            trace_headers: W3C traceparent and tracestate of a program's own span. Calls over HTTP and gRPC brought theirs.

        Raises:
            InvalidRequest: the request is wrong; PromptTooLong if it does not fit.
            Overloaded, Unavailable: it cannot be taken now.
            DeadlineExceeded: its time was over before it was tokenized; see deadlines.py.
        """
        self._check_arguments(request_id, priority, lora_request, data_parallel_rank)
        arrival_time = time.time() if arrival_time is None else arrival_time
        deadline = earliest_deadline(self._settings.request_timeout_s, since_unix_s=arrival_time)
        ticket = self.admission.admit(
            num_requests=sampling_params.n, num_tokens=min(estimated_prompt_tokens(prompt), self.max_model_len)
        )
        call = current_call() or program_call(self.tracer, request_id, trace_headers or {})
        call.start_request(self.model_names.root)
        try:
            with call.working():
                async with within(deadline):
                    prepared = await self._require_inputs().prepare(
                        request_id,
                        prompt,
                        sampling_params,
                        PromptOptions(add_special_tokens, truncate_prompt_tokens, truncation_side, cache_salt),
                        new_handle=self._processor.new_handle,
                        arrival_time=arrival_time,
                        lora_request=lora_request,
                        max_logprobs=max_logprobs,
                    )
            if self._draining:
                raise _draining()
            state = prepared.state
            state.call = call
            # Not before: an engine may be lost while a prompt is tokenized. Nor later: the spans end with what engines do.
            engine = self._engines.choose(data_parallel_rank, pack_u32(state.prompt_token_ids), prepared.cache_salt)
            for sequence in state.sequences:
                sequence.span = call.start_sequence(sequence)
            messages = [
                engine_request(
                    sequence,
                    external_id=request_id,
                    eos_token_id=self.tokenizer_info.eos_token_id,
                    stop_token_ids=prepared.stop_token_ids,
                    bad_words_token_ids=prepared.bad_words_token_ids,
                    thinking=prepared.thinking,
                    priority=priority,
                    arrival_time=arrival_time,
                    cache_salt=prepared.cache_salt,
                    deadline_unix_s=None if deadline is None else deadline.at_unix_s,
                    data_parallel_rank=data_parallel_rank,
                )
                for sequence in state.sequences
            ]
        except BaseException as error:
            ticket.release()
            call.fail(reason_of(error))
            call.release_request()
            raise
        state.hold(ticket)
        state.metrics.submitted_time = time.time()
        self._processor.add(state, engine)
        if deadline is not None:
            state.expire_after(deadline.remaining_s, lambda: self._processor.fail_request(state, deadline.error()))
        for sequence, message in zip(state.sequences, messages, strict=True):
            try:
                engine.add(sequence, message)
            except Unavailable:
                self._processor.abort_request(state)
                raise
        return OutputStream(state, self._processor)

    def _check_arguments(self, request_id: str, priority: int, lora_request: LoRARequest | None, rank: int | None) -> None:
        """Raise for what is wrong whatever the prompt and the parameters are."""
        if self._draining:
            raise _draining()
        if not isinstance(request_id, str):
            raise TypeError(f"request_id must be a string, got {type(request_id).__name__}")
        try:
            request_id.encode()
        except UnicodeEncodeError:
            text = f"request_id must be valid text without lone surrogates, got {request_id[:64]!r}."
            raise InvalidRequest(text, field="request_id") from None
        if not -_MAX_I32 <= priority <= _MAX_I32:
            raise InvalidRequest(f"priority must fit 32 bits, got {priority}.", field="priority")
        if rank is not None and not 0 <= rank <= _MAX_I32:
            text = f"data_parallel_rank must be 0 or more and fit 32 bits, got {rank}."
            raise InvalidRequest(text, field="data_parallel_rank")
        if lora_request is not None and not self.engine_info.supports_lora:
            raise Unsupported(f"Got lora_request {lora_request.lora_name} but LoRA is not enabled!", field="lora_request")

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests; their last output has finish_reason "abort". Unknown ids are ignored."""
        self._processor.abort([request_id] if isinstance(request_id, str) else request_id)

    @counting_errors
    async def encode_chat(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        documents: Sequence[dict[str, Any]] | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        add_special_tokens: bool = False,
    ) -> TokensPrompt:
        """Return the prompt of a conversation, as text and ids.

        Raises:
            InvalidRequest: no messages, content that is far too long, or what the model's template refuses.
            Overloaded, DeadlineExceeded: as in `add_request`.
        """
        plain = plain_messages(messages)
        if add_generation_prompt and continue_final_message:
            text = "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
            raise InvalidRequest(text, field="continue_final_message")
        size = num_chars(plain)
        self._require_inputs().limits.check_num_chars(size)
        # The place is given up with the rendering; whoever goes on to `add_request` takes it in the same tick.
        with self.admission.admit(num_tokens=min(estimated_tokens(size), self.max_model_len)):
            async with within(earliest_deadline(self._settings.request_timeout_s)):
                chat = await self._tokenizer.render_chat(
                    plain,
                    tools=tools,
                    documents=documents,
                    chat_template=chat_template,
                    chat_template_kwargs=chat_template_kwargs,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    add_special_tokens=add_special_tokens,
                )
        return TokensPrompt(prompt=chat.prompt, prompt_token_ids=chat.token_ids)

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text."""
        return (await self.tokenize_with_strings(text, add_special_tokens=add_special_tokens))[0]

    async def tokenize_with_strings(self, text: str, *, add_special_tokens: bool = True) -> tuple[list[int], list[str]]:
        """Return the ids of a text and the vocabulary entry of each."""
        parsed = normalize_prompt(text)
        self._require_inputs().limits.check_num_chars(len(parsed.text or ""))
        return await self._tokenizer.encode_with_strings(text, add_special_tokens=add_special_tokens)

    async def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of ids."""
        wrong = next((i for i in token_ids if not 0 <= i < self.tokenizer_info.vocab_size), None)
        if wrong is not None:
            text = f"Token id {wrong} is out of vocabulary. Vocabulary size: {self.tokenizer_info.vocab_size}"
            raise InvalidRequest(text, field="tokens")
        return (await self._tokenizer.decode([token_ids], skip_special_tokens=skip_special_tokens))[0]

    async def token_texts(self, token_ids: Iterable[int]) -> dict[int, str]:
        """Return the text of each token by itself, as in log-probabilities."""
        ids = set(token_ids)
        await self._tokenizer.load_token_texts(ids)
        return {token_id: self._tokenizer.text_of(token_id) or "" for token_id in ids}

    def tokenizer_bundle(self) -> AsyncGenerator[BundleChunk, None]:
        """Return the tokenizer's files as a zip archive in pieces, for those who make prompts themselves."""
        return self._backends.tokenizer_bundle()

    def withdraw(self) -> None:
        """Be unhealthy from now on, for load balancers to look elsewhere; requests are still taken."""
        self.readiness.note_draining()

    async def wait_idle(self) -> None:
        """Wait until no request runs."""
        await self._processor.wait_idle()

    def start_draining(self) -> None:
        """Refuse new requests from now on."""
        self._draining = True
        self.readiness.note_draining()

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests, let those that run finish within `timeout_s`, and fail the rest with Unavailable."""
        self.start_draining()
        try:
            async with asyncio.timeout(timeout_s):
                await self._processor.wait_idle()
        except TimeoutError:
            log.warning("frontend.drain_timed_out", num_failed=self.num_unfinished_requests, timeout_s=timeout_s)
            self._processor.fail_all(_draining())

    async def close(self) -> None:
        """Fail what runs and end all connections."""
        self.start_draining()
        self._processor.fail_all(_draining())
        await self._backends.close()
        await self.engine_admin.close()
        await asyncio.to_thread(self.tracer.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _require_inputs(self) -> InputProcessor:
        if self._inputs is None:
            raise _starting()
        return self._inputs


def _draining() -> Unavailable:
    return Unavailable("This server is shutting down; try again.", reason="DRAINING", retry_after_s=1.0)


def _starting() -> Unavailable:
    return Unavailable("This server is starting; try again.", reason="STARTING", retry_after_s=1.0)
