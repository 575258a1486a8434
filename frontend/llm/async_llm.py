"""AsyncLLM: runs the requests of one model over tokenizers and engine cores. HTTP, gRPC and the LLM class share it.

Connects to one or more tokenizers and engine cores, and closes them. The intake sends requests; Texts serves calls that need
the tokenizer alone. One event loop: every method must be called on the loop that `connect` ran on.
"""

import asyncio
import functools
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Self, Unpack

from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.engine.admin_client import EngineAdminClient
from tetrad.frontend.engine.facts import EngineInfo, TokenizerInfo
from tetrad.frontend.llm.adapter_names import AdapterNames
from tetrad.frontend.llm.adapters import Adapters
from tetrad.frontend.llm.backends import Backends
from tetrad.frontend.llm.callers import Callers
from tetrad.frontend.llm.input_processor import InputProcessor, RenderedPrompt
from tetrad.frontend.llm.intake import Gate, RequestIntake
from tetrad.frontend.llm.output_stream import OutputStream
from tetrad.frontend.llm.pooling_inputs import PoolingInputs
from tetrad.frontend.llm.pooling_intake import PoolingIntake
from tetrad.frontend.llm.pooling_job import PoolingJob
from tetrad.frontend.llm.prompt_adapters import PromptAdapters
from tetrad.frontend.llm.readiness import draining_error, starting_error, unloaded_error
from tetrad.frontend.llm.served_model import ModelNames, ServedModel
from tetrad.frontend.llm.shared_resources import SharedResources
from tetrad.frontend.llm.tokenization import Texts
from tetrad.frontend.observability.metrics import FrontendMetrics, counting_errors
from tetrad.frontend.parsing.formats import ChatFormats
from tetrad.frontend.request.new_pooling import NewPooling, PoolingOptions
from tetrad.frontend.request.new_request import NewRequest
from tetrad.frontend.request.outputs import LoRARequest, RequestOutput
from tetrad.frontend.request.pooling import PoolingFacts, PoolingParams, PoolingRequestOutput, required_facts
from tetrad.frontend.request.prompts import PromptType
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.services.errors import FailedPrecondition, InvalidRequest, TetradError, Unavailable
from tetrad.services.log import get_logger
from tetrad.services.rpc.carrier import GRPC, Carrier

log = get_logger()


class AsyncLLM:
    """An LLM behind services. Use `await AsyncLLM.connect(settings)`; close it, or use it as an async context manager.

    Args:
        settings: where the services are, and the limits of requests.
        carrier: to the services.
        shared: with the other models of a frontend, which starts and closes it. None: this model is alone.
    """

    def __init__(self, settings: FrontendSettings, carrier: Carrier = GRPC, shared: SharedResources | None = None) -> None:
        self.settings = settings
        self._is_alone = shared is None
        self.shared = shared or SharedResources(settings)
        self.admission, self.tracer = self.shared.admission, self.shared.tracer
        self.metrics = FrontendMetrics(
            prefix=settings.metrics_prefix, model_name=next(iter(settings.served_model_names), settings.model)
        )
        if self._is_alone:
            self.metrics.watch(self.admission)
        self.backends = Backends(settings, self.metrics, self.shared.recent, carrier)
        self.readiness = self.backends.readiness
        self.engine_admin = EngineAdminClient(
            functools.partial(self.backends.engines.admin_endpoints, settings.engine_admin_targets),
            max_message_bytes=settings.max_message_bytes,
            tls=settings.tls,
            carrier=carrier,
        )
        self._prompt_adapters = PromptAdapters()
        self.adapters = Adapters(self.engine_admin, self._prompt_adapters)
        self._requests = self.backends.requests
        self.callers = Callers()
        self._gate = Gate()
        common = (self._gate, self.shared.tasks, self.admission, self.backends, self.tracer, settings.request_timeout_s)
        self._intake = RequestIntake(*common)
        self._pooling_intake = PoolingIntake(*common, self.metrics)
        self._model: ServedModel | None = None
        self._texts: Texts | None = None

    # --- its life ---------------------------------------------------------------------------------------------------

    @classmethod
    async def connect(cls, settings: FrontendSettings, carrier: Carrier = GRPC) -> Self:
        """Return an AsyncLLM whose tokenizer and engines are ready.

        Raises:
            Unavailable: they are not after `settings.ready_timeout_s`.
            FailedPrecondition: an engine speaks another revision of the contract.
        """
        llm = cls(settings, carrier)
        try:
            await llm.start()
        except BaseException:
            await llm.close()
            raise
        return llm

    async def start(self) -> None:
        """Connect; once. Until this returns requests are refused with Unavailable. Raises as `connect` does."""
        await self.start_within(self.settings.ready_timeout_s)

    async def start_within(self, timeout_s: float | None) -> None:
        """Do what `start` does, within a time.

        Args:
            timeout_s: how long that may take. None: any time.

        Raises:
            Unavailable, FailedPrecondition: see `connect`.
        """
        if self._is_alone:
            await self.shared.start(self.metrics.render)
        tokenizer = await self.backends.start(timeout_s)
        model = await ServedModel.of(self.settings, tokenizer, self.backends)
        self.backends.processor.eos_token_ids = tokenizer.eos_token_ids
        self._texts = Texts(model, self.backends.tokenizer, self.admission, self.metrics, self.settings.request_timeout_s)
        self._intake.open(InputProcessor(self.backends.tokenizer, model, self._prompt_adapters), model.names.root)
        self._pooling_intake.open(PoolingInputs(self.backends.tokenizer, model.limits, self._prompt_adapters), model.names.root)
        self._model = model
        await self._load_adapters(model.names.adapters)
        self.readiness.note_started()
        log.info("frontend.ready", model=model.names.root, max_model_len=self.max_model_len, num_engines=self.num_engines)

    async def _load_adapters(self, adapters: AdapterNames) -> None:
        """Load the adapters of the settings, or raise why one cannot be used; on the first request, if nobody can ask."""
        named = [lora for lora in adapters if not await self._prompt_adapters.load(lora)]
        if named and not self.engine_info.supports_lora:
            raise FailedPrecondition("lora_modules needs an engine core that was started with --enable-lora.")
        try:
            self.engine_admin.check_targets()
        except FailedPrecondition:
            return
        for lora in named:
            await self.engine_admin.load_lora(lora)

    def withdraw(self) -> None:
        """Be unhealthy from now on, for load balancers to look elsewhere; requests are still taken."""
        self.readiness.note_draining()

    async def wait_idle(self) -> None:
        """Wait until no request runs."""
        await self._requests.wait_idle()

    def start_draining(self) -> None:
        """Refuse new requests from now on."""
        self._close_gate(draining_error)

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests, let those that run finish within `timeout_s`, and fail the rest with Unavailable."""
        self.start_draining()
        await self._finish(self._requests.wait_idle(), timeout_s, draining_error)

    async def retire(self, timeout_s: float) -> None:
        """Let the calls that have found this model end within `timeout_s`, and fail the rest with Unavailable.

        Unlike `drain`, this lets such calls make requests until then. No new call may find the model any more.
        """
        make_error = functools.partial(unloaded_error, next(iter(self.served_names), ""))
        await self._finish(self._wait_unused(), timeout_s, make_error)
        self._close_gate(make_error)

    async def _wait_unused(self) -> None:
        await self.callers.wait_done()
        await self._requests.wait_idle()

    async def _finish(self, ending: Coroutine[Any, Any, None], timeout_s: float, make_error: Callable[[], Unavailable]) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await ending
        except TimeoutError:
            log.warning("frontend.drain_timed_out", num_failed=self.num_unfinished_requests, timeout_s=timeout_s)
            self._close_gate(make_error)
            self._requests.fail_all(make_error())

    def _close_gate(self, make_error: Callable[[], Unavailable]) -> None:
        self._gate.close(make_error)
        self.readiness.note_draining()

    async def close(self) -> None:
        """Fail what runs and end all connections."""
        self.start_draining()
        self._requests.fail_all(draining_error())
        await self.backends.close()
        await self.engine_admin.close()
        if self._is_alone:
            await self.shared.close()

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
        prediction: str = "",
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
            prediction: text that is expected as the output: where it comes true, the output is faster. Empty: none.

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
            prediction=prediction,
        )
        return await self._intake.take(request)

    @counting_errors
    async def render(self, request: NewRequest) -> RenderedPrompt:
        """Check a request and tokenize its prompt as `add_request` does, and send nothing. Errors: see there."""
        return await self._intake.render(request)

    async def encode(
        self, prompt: PromptType, pooling_params: PoolingParams, request_id: str, **options: Unpack[PoolingOptions]
    ) -> PoolingRequestOutput:
        """Return the answer of a pooling request; cancelling the call aborts it. Arguments and errors: see `encode_all`."""
        [output] = await self.encode_all([prompt], [pooling_params], request_id, **options)
        return output

    async def encode_all(
        self,
        prompts: Sequence[PromptType],
        pooling_params: Sequence[PoolingParams],
        request_id: str,
        **options: Unpack[PoolingOptions],
    ) -> list[PoolingRequestOutput]:
        """Return the answers to several prompts, in their order; cancelling the call aborts them.

        They are one request: it is admitted once, and fails as a whole.

        Args:
            prompts: at least one, each as for `generate`; it may fill the whole context.
            pooling_params: what to make of each prompt.
            request_id: the caller's name for the request.
            options: see PoolingOptions.

        Raises:
            InvalidRequest: the request is wrong, or the model generates.
            Unsupported: the model does not have the task.
            FailedPrecondition: the request was aborted.
            Overloaded, Unavailable, DeadlineExceeded: see `add_request`.
        """
        job = await self.add_pooling_request(request_id, prompts, pooling_params, **options)
        return await job.answers()

    @counting_errors
    async def add_pooling_request(
        self,
        request_id: str,
        prompts: Sequence[PromptType],
        pooling_params: Sequence[PoolingParams],
        **options: Unpack[PoolingOptions],
    ) -> PoolingJob:
        """Check a pooling request, tokenize its prompts and send them to engines. Arguments and errors: see `encode_all`."""
        new = NewPooling(request_id=request_id, prompts=prompts, params=pooling_params, arrival_time=time.time(), **options)
        return await self._pooling_intake.take(new)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests; their last output has finish_reason "abort". Unknown ids are ignored."""
        self._requests.abort([request_id] if isinstance(request_id, str) else request_id)

    # --- facts ------------------------------------------------------------------------------------------------------

    async def check_health(self) -> None:
        """Return if requests can be served now; Unavailable, saying why, otherwise."""
        self.readiness.report().check()

    @property
    def started(self) -> bool:
        """Whether `start` has returned once."""
        return self._model is not None

    @property
    def engine_info(self) -> EngineInfo:
        """The last description of the first engine core."""
        return self.backends.engines.info

    @property
    def pooling(self) -> PoolingFacts | None:
        """What the model pools; None: it generates."""
        return self.engine_info.pooling

    def required_pooling(self, task: str, what: str, error: type[TetradError] = InvalidRequest) -> PoolingFacts:
        """Return what the model pools; an error that names the models with a task, if this one does not have it.

        Args:
            task: that is needed.
            what: is asked for, in the message.
            error: its class.
        """
        return required_facts(self.pooling, task, what, error, hint=self.shared.tasks.hint(task))

    @property
    def tokenizer_info(self) -> TokenizerInfo:
        """The tokenizer's description of itself."""
        return self._require_model().tokenizer

    @property
    def model_names(self) -> ModelNames:
        """The names clients may ask for."""
        return self._require_model().names

    @property
    def served_names(self) -> tuple[str, ...]:
        """The model's own names, as set or as its tokenizer reports it; empty as long as neither is known."""
        return self.settings.names if self._model is None else self._model.names.names

    @property
    def all_names(self) -> list[str]:
        """The names that clients may ask for, with those of the adapters."""
        names = self.model_names
        return [*names.names, *(lora.lora_name for lora in names.adapters)]

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
        """Tokenization without generation."""
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
