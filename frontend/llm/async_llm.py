"""AsyncLLM: requests in, outputs out. The one life of a request that HTTP, gRPC and the LLM class share.

Connects to one or more tokenizers and engine cores, and ends with them: how a request gets in is the intake's, what is asked of
the tokenizer alone is that of Texts. One event loop: every method must be called on the loop that `connect` ran on.
"""

import asyncio
import functools
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any, Self

from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.engine.admin_client import EngineAdminClient
from tetrad.frontend.engine.facts import EngineInfo, TokenizerInfo
from tetrad.frontend.llm.backends import Backends
from tetrad.frontend.llm.input_processor import InputProcessor
from tetrad.frontend.llm.intake import RequestIntake
from tetrad.frontend.llm.model_names import ModelNames
from tetrad.frontend.llm.output_stream import OutputStream
from tetrad.frontend.llm.readiness import draining_error, starting_error
from tetrad.frontend.llm.served_model import ServedModel
from tetrad.frontend.llm.tokenization import Texts
from tetrad.frontend.observability.metrics import FrontendMetrics, counting_errors
from tetrad.frontend.parsing.formats import ChatFormats
from tetrad.frontend.request.admission import Admission
from tetrad.frontend.request.new_request import NewRequest
from tetrad.frontend.request.outputs import LoRARequest, RequestOutput
from tetrad.frontend.request.prompts import PromptType
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.services.log import get_logger
from tetrad.services.tracer import open_tracer
from tetrad.services.tracing import Tracer

log = get_logger()


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
        self.backends = Backends(settings, self.metrics)
        self.readiness = self.backends.readiness
        self.engine_admin = EngineAdminClient(
            functools.partial(self.backends.engines.admin_endpoints, settings.engine_admin_targets),
            max_message_bytes=settings.max_message_bytes,
            tls=settings.tls,
        )
        self._requests = self.backends.requests
        self._intake = RequestIntake(self.admission, self.backends, self.tracer, settings.request_timeout_s)
        self._model: ServedModel | None = None
        self._texts: Texts | None = None

    # --- its life ---------------------------------------------------------------------------------------------------

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
        tokenizer = await self.backends.start(self._settings.ready_timeout_s)
        model = await ServedModel.of(self._settings, tokenizer, self.backends)
        self.backends.processor.eos_token_ids = tokenizer.eos_token_ids
        self._texts = Texts(model, self.backends.tokenizer, self.admission, self.metrics, self._settings.request_timeout_s)
        self._intake.open(InputProcessor(self.backends.tokenizer, model), model.names.root)
        self._model = model
        self.readiness.note_started()
        log.info("frontend.ready", model=model.names.root, max_model_len=self.max_model_len, num_engines=self.num_engines)

    def withdraw(self) -> None:
        """Be unhealthy from now on, for load balancers to look elsewhere; requests are still taken."""
        self.readiness.note_draining()

    async def wait_idle(self) -> None:
        """Wait until no request runs."""
        await self._requests.wait_idle()

    def start_draining(self) -> None:
        """Refuse new requests from now on."""
        self._intake.close()
        self.readiness.note_draining()

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests, let those that run finish within `timeout_s`, and fail the rest with Unavailable."""
        self.start_draining()
        try:
            async with asyncio.timeout(timeout_s):
                await self._requests.wait_idle()
        except TimeoutError:
            log.warning("frontend.drain_timed_out", num_failed=self.num_unfinished_requests, timeout_s=timeout_s)
            self._requests.fail_all(draining_error())

    async def close(self) -> None:
        """Fail what runs and end all connections."""
        self.start_draining()
        self._requests.fail_all(draining_error())
        await self.backends.close()
        await self.engine_admin.close()
        await _close_tracer(self.tracer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- requests ---------------------------------------------------------------------------------------------------

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
        request = NewRequest(
            request_id=request_id,
            prompt=prompt,
            params=sampling_params,
            priority=priority,
            lora_request=lora_request,
            add_special_tokens=add_special_tokens,
            truncate_prompt_tokens=truncate_prompt_tokens,
            truncation_side=truncation_side,
            cache_salt=cache_salt,
            data_parallel_rank=data_parallel_rank,
            arrival_time=time.time() if arrival_time is None else arrival_time,
            max_logprobs=max_logprobs,
            trace_headers=trace_headers or {},
        )
        return await self._intake.take(request)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests; their last output has finish_reason "abort". Unknown ids are ignored."""
        self._requests.abort([request_id] if isinstance(request_id, str) else request_id)

    # --- what it knows ----------------------------------------------------------------------------------------------

    async def check_health(self) -> None:
        """Return if requests can be served now; Unavailable, saying why, otherwise."""
        self.readiness.report().check()

    @property
    def started(self) -> bool:
        """Whether `start` has returned once."""
        return self._model is not None

    @property
    def engine_info(self) -> EngineInfo:
        """What the first engine said of itself last."""
        return self.backends.engines.info

    @property
    def tokenizer_info(self) -> TokenizerInfo:
        """What the tokenizer said of itself."""
        return self._require_model().tokenizer

    @property
    def model_names(self) -> ModelNames:
        """The names clients may ask for."""
        return self._require_model().names

    @property
    def chat_formats(self) -> ChatFormats:
        """The formats in which the model writes its turns."""
        return self._require_model().formats

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus output, in tokens."""
        return self._require_model().limits.max_model_len

    @property
    def num_engines(self) -> int:
        """Engine cores that requests go to."""
        return len(self.backends.engines)

    @property
    def num_unfinished_requests(self) -> int:
        """Requests that have not had their last output."""
        return len(self._requests)

    @property
    def num_engine_steps(self) -> int:
        """Engine steps that brought something, since start."""
        return self.backends.processor.num_steps

    @property
    def texts(self) -> Texts:
        """What may be asked of the tokenizer for its own sake."""
        if self._texts is None:
            raise starting_error()
        return self._texts

    def default_sampling_fields(self) -> dict[str, Any]:
        """Return the sampling defaults of the model's authors (generation config), by SamplingParams' names."""
        return dict(self._require_model().sampling_defaults)

    def get_default_sampling_params(self) -> SamplingParams:
        """Return SamplingParams with the defaults of the model's authors."""
        return SamplingParams(**self.default_sampling_fields())

    def _require_model(self) -> ServedModel:
        if self._model is None:
            raise starting_error()
        return self._model


async def _close_tracer(tracer: Tracer) -> None:
    """Close it beside the event loop, or on it where the interpreter is ending: by then threads take no calls any more."""
    try:
        await asyncio.to_thread(tracer.close)
    except RuntimeError:
        tracer.close()
