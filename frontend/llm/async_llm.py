"""AsyncLLM: runs the requests of one model over tokenizers and engine cores. HTTP, gRPC and the LLM class share it.

Connects to one or more tokenizers and engine cores, and closes the connections. The intakes send requests; Texts serves calls
that need only the tokenizer; Draining ends the use of the model. One event loop: every method must be called on the loop that
`connect` ran on.
"""

import functools
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any, Self, Unpack

from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.engine.admin_client import EngineAdminClient
from tetrad.frontend.engine.facts import EngineInfo, TokenizerInfo
from tetrad.frontend.llm.adapters import Adapters
from tetrad.frontend.llm.backends import Backends
from tetrad.frontend.llm.draining import Draining
from tetrad.frontend.llm.input_processor import InputProcessor, RenderedPrompt
from tetrad.frontend.llm.intake import RequestIntake
from tetrad.frontend.llm.model_tasks import use_without_pooling
from tetrad.frontend.llm.output_stream import OutputStream
from tetrad.frontend.llm.pooling_inputs import PoolingInputs
from tetrad.frontend.llm.pooling_intake import PoolingIntake
from tetrad.frontend.llm.pooling_job import PoolingJob
from tetrad.frontend.llm.prompt_adapters import PromptAdapters
from tetrad.frontend.llm.readiness import starting_error
from tetrad.frontend.llm.recordings import Recordings
from tetrad.frontend.llm.served_model import ModelNames, ServedModel
from tetrad.frontend.llm.shared_resources import SharedResources
from tetrad.frontend.llm.tokenization import Texts
from tetrad.frontend.observability.metrics import FrontendMetrics, counting_errors
from tetrad.frontend.parsing.formats import ChatFormats
from tetrad.frontend.request.new_pooling import NewPooling, PoolingOptions
from tetrad.frontend.request.new_request import NewRequest, RequestOptions
from tetrad.frontend.request.outputs import RequestOutput
from tetrad.frontend.request.pooling import PoolingFacts, PoolingParams, PoolingRequestOutput, required_facts
from tetrad.frontend.request.prompts import PromptType
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.services.errors import InvalidRequest, TetradError
from tetrad.services.log import get_logger
from tetrad.services.rpc.carrier import GRPC, Carrier

log = get_logger()


class AsyncLLM:
    """An LLM that runs in services. Use `await AsyncLLM.connect(settings)`; close it, or use it as an async context manager.

    Args:
        settings: the addresses of the services, and the limits of requests.
        carrier: carries the calls to the services.
        shared: the resources shared with the other models of a frontend, which starts and closes them. None: the only model.

    Attributes:
        draining: refuses new requests, and waits for the running ones.
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
        self.draining = Draining(self._requests, self.readiness)
        common = (self.draining.gate, self.shared.tasks, self.admission, self.backends, self.tracer, settings.request_timeout_s)
        self._intake = RequestIntake(*common)
        self._pooling_intake = PoolingIntake(*common)
        self._model: ServedModel | None = None
        self._texts: Texts | None = None
        self._recordings: Recordings | None = None

    # --- start and end ----------------------------------------------------------------------------------------------

    @classmethod
    async def connect(cls, settings: FrontendSettings, carrier: Carrier = GRPC) -> Self:
        """Return an AsyncLLM whose tokenizer and engines are ready.

        Raises:
            Unavailable: they are not ready within `settings.ready_timeout_s`.
            FailedPrecondition: an engine uses another revision of the contract.
        """
        llm = cls(settings, carrier)
        try:
            await llm.start()
        except BaseException:
            await llm.close()
            raise
        return llm

    async def start(self) -> None:
        """Connect to the services; call it once. Until it returns, requests fail with Unavailable. Raises as `connect` does."""
        await self.start_within(self.settings.ready_timeout_s)

    async def start_within(self, timeout_s: float | None) -> None:
        """Connect as `start` does, within a time limit.

        Args:
            timeout_s: the longest time. None: no limit.

        Raises:
            Unavailable, FailedPrecondition: see `connect`.
        """
        if self._is_alone:
            await self.shared.start(self.metrics.render)
        tokenizer = await self.backends.start(timeout_s)
        model = await ServedModel.of(self.settings, tokenizer, self.backends)
        self.backends.processor.eos_token_ids = tokenizer.eos_token_ids
        timeout_s, media = self.settings.request_timeout_s, self.shared.media
        self._texts = Texts(model, self.backends.tokenizer, self.admission, self.metrics, media, timeout_s)
        self._recordings = Recordings(
            model,
            self.backends.tokenizer,
            self.admission,
            self.metrics,
            max_bytes=self.settings.max_speech_bytes,
            timeout_s=timeout_s,
        )
        self._intake.open(InputProcessor(self.backends.tokenizer, model, self._prompt_adapters, media), model.names.root)
        self._pooling_intake.open(PoolingInputs(self.backends.tokenizer, model.limits, self._prompt_adapters), model.names.root)
        self._model = model
        await self.adapters.load_named(
            model.names.adapters,
            supports_lora=self.engine_info.supports_lora,
            of_media=model.media_adapters.modalities,
        )
        if self.settings.allow_runtime_lora_updating:
            await self.adapters.learn(model.names.adapters)
        self.readiness.note_started()
        log.info("frontend.ready", model=model.names.root, max_model_len=self.max_model_len, num_engines=self.num_engines)

    async def wait_idle(self) -> None:
        """Wait until no request is running."""
        await self._requests.wait_idle()

    async def reset_mm_cache(self) -> None:
        """Let all tokenizers forget the images that they have preprocessed."""
        await self.backends.reset_media_caches()

    async def close(self) -> None:
        """Fail the running requests and close all connections."""
        self.draining.end()
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
        **options: Unpack[RequestOptions],
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the outputs of a request; leaving the loop early aborts it. Arguments and errors: see `add_request`."""
        stream = await self.add_request(request_id, prompt, sampling_params, **options)
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
        arrival_time: float | None = None,
        **options: Unpack[RequestOptions],
    ) -> OutputStream:
        """Check a request, tokenize its prompt and send it to an engine.

        Args:
            request_id: the caller's id of the request; several requests may share one, and `abort` then ends them all.
            prompt: text, token ids, TextPrompt or TokensPrompt.
            sampling_params: the sampling parameters; they are copied.
            arrival_time: the arrival in Unix seconds; None: now.
            options: see RequestOptions.

        Raises:
            InvalidRequest: the request is invalid; PromptTooLong if the prompt does not fit.
            Overloaded, Unavailable: the request cannot be accepted now.
            DeadlineExceeded: its deadline passed before it was tokenized; see deadlines.py.
        """
        arrived = time.time() if arrival_time is None else arrival_time
        request = NewRequest(request_id=request_id, prompt=prompt, params=sampling_params, arrival_time=arrived, **options)
        return await self._intake.take(request)

    @counting_errors
    async def render(self, request: NewRequest) -> RenderedPrompt:
        """Check a request and tokenize its prompt without sending it. Errors: see `add_request`."""
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

        All prompts together are one request: it is admitted once, and fails as a whole.

        Args:
            prompts: at least one, each as for `generate`; a prompt may fill the whole context.
            pooling_params: the pooling parameters of each prompt.
            request_id: the caller's id of the request.
            options: see PoolingOptions.

        Raises:
            InvalidRequest: the request is invalid, or the model is a generating model.
            Unsupported: the model does not support the task.
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
        """Return if requests can be served now; else raise Unavailable with the reason."""
        self.readiness.report().check()

    @property
    def started(self) -> bool:
        """Whether `start` has succeeded."""
        return self._model is not None

    @property
    def engine_info(self) -> EngineInfo:
        """The latest description of the first engine core."""
        return self.backends.engines.info

    @property
    def modalities(self) -> tuple[str, ...]:
        """The media that prompts may have, such as "image"; empty: text only."""
        return self._require_model().media.modalities

    @property
    def pooling(self) -> PoolingFacts | None:
        """The pooling facts of the model; None: it only generates, or transcribes."""
        return self.engine_info.pooling

    @property
    def transcribes(self) -> bool:
        """Whether the model turns speech into text; it then answers no chats, and no prompts without audio."""
        return self.engine_info.supports_transcription

    @property
    def generates(self) -> bool:
        """Whether the model generates; a model may also pool."""
        return self.pooling is None or self.pooling.generates

    def required_pooling(self, task: str, what: str, error: type[TetradError] = InvalidRequest) -> PoolingFacts:
        """Return the pooling facts of the model; if it lacks a task, raise an error that names the models with that task.

        Args:
            task: the task that is needed.
            what: the requested function, for the message.
            error: the class of the error.
        """
        use, hint = use_without_pooling(transcribes=self.transcribes), self.shared.tasks.hint(task)
        return required_facts(self.pooling, task, what, error, use=use, hint=hint)

    @property
    def tokenizer_info(self) -> TokenizerInfo:
        """The tokenizer's description of itself."""
        return self._require_model().tokenizer

    @property
    def model_names(self) -> ModelNames:
        """The names that clients may use for the model."""
        return self._require_model().names

    @property
    def served_names(self) -> tuple[str, ...]:
        """The model's own names, from the settings or from its tokenizer; empty while neither is known."""
        return self.settings.names if self._model is None else self._model.names.names

    @property
    def all_names(self) -> list[str]:
        """The names that clients may use, including those of the adapters."""
        names = self.model_names
        return [*names.names, *(lora.lora_name for lora in names.adapters)]

    @property
    def chat_formats(self) -> ChatFormats:
        """The formats in which the model writes its turns."""
        return self._require_model().formats

    @property
    def max_model_len(self) -> int:
        """The limit on prompt plus output, in tokens."""
        return self._require_model().limits.max_model_len

    @property
    def engine_ranks(self) -> list[int]:
        """The ranks of the engine cores that `engine_admin` asks, in the order of its answers."""
        return self.backends.engines.admin_ranks(self.settings.engine_admin_targets)

    @property
    def absent_engine_ranks(self) -> frozenset[int]:
        """Those of `engine_ranks` whose engine cores are not connected."""
        return self.backends.engines.absent_ranks(self.settings.engine_admin_targets)

    @property
    def num_engines(self) -> int:
        """The number of engine cores that requests are sent to."""
        return len(self.backends.engines)

    @property
    def num_unfinished_requests(self) -> int:
        """The number of requests that have not received their last output."""
        return len(self._requests)

    @property
    def num_engine_steps(self) -> int:
        """The number of engine steps with any output, since start."""
        return self.backends.processor.num_steps

    @property
    def texts(self) -> Texts:
        """Serves tokenization without generation."""
        if self._texts is None:
            raise starting_error()
        return self._texts

    @property
    def recordings(self) -> Recordings:
        """Has recordings of speech prepared for the model."""
        if self._recordings is None:
            raise starting_error()
        return self._recordings

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
