"""AsyncLLM for programs: the frontend's AsyncLLM together with its services.

Called by programs, and by LLM and LLMEngine through their event-loop thread. llm_services.py finds or starts the services; the
frontend's AsyncLLM runs the requests. One event loop: that of the first await.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Self

from tetrad.config import ModelConfig, VllmConfig, config_of
from tetrad.drop_in.missing_methods import MissingFromAsyncLLM
from tetrad.drop_in.shared_verdicts import NO_HINTS, NO_PARSER_OPTIONS, NO_REASONING, NO_SESSION, ONE_ID, USAGE
from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.llm.async_llm import AsyncLLM as Frontend
from tetrad.frontend.llm.beam_search import BeamSearchOutput, BeamSearchParams, beam_search
from tetrad.frontend.llm.model_tasks import tasks_of
from tetrad.frontend.llm.output_stream import OutputStream
from tetrad.frontend.request.outputs import LoRARequest, RequestOutput
from tetrad.frontend.request.pooling import PoolingParams
from tetrad.frontend.request.prompts import PromptType
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.library.arguments import check_adapter, checked_beam_params, checked_params, pooling_params_of, tokenization_of
from tetrad.library.async_lora_operations import AsyncLoraOperations
from tetrad.library.async_operations import AsyncOperations
from tetrad.library.async_weight_operations import AsyncWeightOperations
from tetrad.library.engine_args import EngineArgs
from tetrad.library.llm_services import LocalServices, RemoteServices, Services
from tetrad.library.media_prompts import with_files
from tetrad.library.pooling_outputs import PooledRequestOutput, PoolingOutput, pooled_answer
from tetrad.library.stat_loggers import StatLoggerFactory, StatReporter, reporter_of
from tetrad.services.errors import Unavailable
from tetrad.services.log import configure_library_logging
from tetrad.services.verdicts import ignored, takes

# A program that queues a million prompts must get answers to all of them, so its requests have no limits.
_LOOP = ignored(True, "The engine's loop is in another process.")
_UNLIMITED = {"max_num_requests": 0, "max_num_queued_tokens": 0}


class AsyncLLM(AsyncLoraOperations, AsyncOperations, AsyncWeightOperations, MissingFromAsyncLLM):
    """An LLM for asyncio programs. It starts with the first request or with `start`; close it, or use `async with`.

    Args:
        services: the services to use; see `from_engine_args` and `from_target`.
        args: the arguments that the services are started with; None: they were started elsewhere.
        stat_loggers: factories of a program's own stat loggers; see stat_loggers.py.
        log_stats: whether stat loggers write every ten seconds.
    """

    def __init__(
        self,
        services: Services,
        *,
        args: EngineArgs | None = None,
        stat_loggers: Sequence[StatLoggerFactory] | None = None,
        log_stats: bool = False,
    ) -> None:
        configure_library_logging()
        self._services = services
        self._args, self._stat_loggers, self._log_stats = args, stat_loggers, log_stats
        self._starting = asyncio.Lock()  # guards _frontend: two first requests must not start two stacks
        self._frontend: Frontend | None = None
        self._reporter: StatReporter | None = None
        self._is_closed = False
        self._numbers = itertools.count()

    @classmethod
    @takes(start_engine_loop=_LOOP, usage_context=USAGE)
    def from_engine_args(cls, engine_args: EngineArgs, stat_loggers: Sequence[StatLoggerFactory] | None = None) -> Self:
        """Return an AsyncLLM that starts its own services.

        Args:
            engine_args: the arguments of the engine; without `disable_log_stats`, a line with the load is logged every 10 s.
            stat_loggers: factories of further loggers; see stat_loggers.py.
        """
        log_stats = not engine_args.disable_log_stats
        return cls(LocalServices(engine_args), args=engine_args, stat_loggers=stat_loggers, log_stats=log_stats)

    @classmethod
    def from_target(cls, target: str, admin_target: str | None = None) -> Self:
        """Return an AsyncLLM that uses running services; see RemoteServices for the arguments."""
        return cls(RemoteServices(target, admin_target))

    @property
    def runs_functions(self) -> bool:
        """Whether this program started the services and they may run its functions."""
        return self._args is not None and self._args.allow_functions

    # --- start and end ----------------------------------------------------------------------------------------------

    async def start(self) -> Frontend:
        """Start the services and the frontend, if they have not been started, and return the frontend.

        Raises:
            NotFound, FailedPrecondition: the model cannot be served.
            Unavailable: the services did not start, or this object was closed.
        """
        async with self._starting:
            if self._is_closed:
                raise self.dead_error
            if self._frontend is None:
                try:
                    settings = await self._services.start()
                    self._frontend = await self._connect(settings)
                except BaseException:
                    await self._services.close()
                    raise
        return self._frontend

    async def _connect(self, settings: FrontendSettings) -> Frontend:
        """Return a frontend, whose statistics are reported from now on."""
        frontend = await Frontend.connect(settings.model_copy(update=_UNLIMITED))
        try:
            config = config_of(frontend, self._args)
            self._reporter = reporter_of(frontend, config, self._stat_loggers, log_stats=self._log_stats)
        except BaseException:  # of a program's own stat logger
            await frontend.close()
            raise
        return frontend

    async def close(self) -> None:
        """Fail running requests and stop the services that this object started."""
        async with self._starting:
            self._is_closed = True
            frontend, self._frontend = self._frontend, None
            if self._reporter is not None:
                self._reporter.stop()
            if frontend is not None:
                await frontend.close()
            await self._services.close()

    def shutdown(self, timeout: float | None = None) -> None:
        """Release the services without waiting, for `finally` blocks outside of the event loop, as in vLLM's programs."""
        del timeout
        self._is_closed = True
        self._services.abandon()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # --- requests ---------------------------------------------------------------------------------------------------

    @takes(session_id=NO_SESSION, kv_hints=NO_HINTS, reasoning_parser_kwargs=NO_PARSER_OPTIONS)
    async def add_request(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams,
        arrival_time: float | None = None,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
        prompt_text: str | None = None,
        *,
        reasoning_ended: bool | None = None,
        prediction: str = "",
    ) -> OutputStream:
        """Start a request and return the stream of its outputs. Errors: see the frontend's `add_request`.

        `reasoning_ended` says whether a constraint holds from the first token (True) or after the end of the reasoning (False);
        None: with a `reasoning_parser` the prompt decides, else from the first token. `prediction` is the expected output, of
        which much may be right; see docs/speculation.md.
        """
        check_adapter(lora_request)
        if prompt_text is not None and isinstance(prompt, list):
            prompt = {"prompt_token_ids": prompt, "prompt": prompt_text}
        return await (await self.start()).add_request(
            request_id,
            await with_files(prompt),
            checked_params(params),
            arrival_time=arrival_time,
            lora_request=lora_request,
            trace_headers=trace_headers,
            priority=priority,
            data_parallel_rank=data_parallel_rank,
            reasoning_ended=reasoning_ended,
            prediction=prediction,
            **tokenization_of(tokenization_kwargs),
        )

    @takes(session_id=NO_SESSION, kv_hints=NO_HINTS, reasoning_parser_kwargs=NO_PARSER_OPTIONS)
    async def generate(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams,
        request_id: str | None = None,
        *,
        prompt_text: str | None = None,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        data_parallel_rank: int | None = None,
        trace_headers: Mapping[str, str] | None = None,
        reasoning_ended: bool | None = None,
        prediction: str = "",
    ) -> AsyncIterator[RequestOutput]:
        """Yield the outputs of a request; leaving the loop early aborts it. See `add_request`."""
        stream = await self.add_request(
            request_id if request_id is not None else f"request-{next(self._numbers)}",
            prompt,
            sampling_params,
            prompt_text=prompt_text,
            priority=priority,
            lora_request=lora_request,
            tokenization_kwargs=tokenization_kwargs,
            data_parallel_rank=data_parallel_rank,
            trace_headers=trace_headers,
            reasoning_ended=reasoning_ended,
            prediction=prediction,
        )
        try:
            async for output in stream:
                yield output
        finally:
            stream.close()

    @takes(reasoning_ended=NO_REASONING)
    async def encode(
        self,
        prompt: PromptType,
        pooling_params: PoolingParams,
        request_id: str | None = None,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[PooledRequestOutput[PoolingOutput]]:
        """Yield the single answer of a pooling request. Errors: see the frontend's `encode`."""
        check_adapter(lora_request)
        frontend = await self.start()
        output = await frontend.encode(
            await with_files(prompt),
            pooling_params_of(pooling_params, 1)[0],
            request_id if request_id is not None else f"request-{next(self._numbers)}",
            priority=priority,
            trace_headers=trace_headers,
            lora_requests=[lora_request],
            **tokenization_of(tokenization_kwargs),
        )
        yield pooled_answer(output, PoolingOutput(output.outputs.to_list()))

    async def beam_search(
        self,
        prompt: PromptType,
        params: BeamSearchParams,
        request_id: str | None = None,
        *,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
    ) -> BeamSearchOutput:
        """Return the best continuations of a prompt. Arguments and errors: see frontend/llm/beam_search.py."""
        check_adapter(lora_request)
        params = checked_beam_params(params)
        frontend = await self.start()
        request_id = request_id if request_id is not None else f"request-{next(self._numbers)}"
        prompt = await with_files(prompt)
        return await beam_search(frontend, request_id, prompt, params, priority=priority, lora_request=lora_request)

    @takes(internal=ONE_ID)
    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Abort requests; their last output has finish_reason "abort". Unknown ids are ignored."""
        if self._frontend is not None:
            await self._frontend.abort(request_id)

    async def wait_for_requests_to_drain(self, drain_timeout: float = 300) -> None:
        """Wait until no request runs; TimeoutError after `drain_timeout` seconds."""
        async with asyncio.timeout(drain_timeout):
            await (await self.start()).wait_idle()

    def get_num_unfinished_requests(self) -> int:
        """Return the number of unfinished requests."""
        return 0 if self._frontend is None else self._frontend.num_unfinished_requests

    def get_num_queued_tokens(self) -> int:
        """Return the number of prompt tokens of requests without an output token."""
        return 0 if self._frontend is None else self._frontend.admission.num_queued_tokens

    # --- facts ------------------------------------------------------------------------------------------------------

    async def check_health(self) -> None:
        """Raise Unavailable, with the reason, if requests cannot be served now."""
        await (await self.start()).check_health()

    async def do_log_stats(self) -> None:
        """Let the stat loggers write the statistics since their last output."""
        await self.start()
        assert self._reporter is not None
        self._reporter.report()

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """Return the model's tasks."""
        return tasks_of(await self.start())

    async def get_vllm_config(self) -> VllmConfig:
        """Return the engine's configuration."""
        return config_of(await self.start(), self._args)

    async def get_model_config(self) -> ModelConfig:
        """Return the configuration of the served model."""
        return (await self.get_vllm_config()).model_config

    async def is_tracing_enabled(self) -> bool:
        """Return whether spans are sent to a collector."""
        return self._args is not None and self._args.otlp_traces_endpoint is not None

    @property
    def is_running(self) -> bool:
        """Whether requests are accepted; also True before the first one, which starts the services."""
        return not self._is_closed

    @property
    def is_stopped(self) -> bool:
        """Whether this object was closed."""
        return self._is_closed

    @property
    def errored(self) -> bool:
        """Whether requests can no longer be served, because this object was closed. Lost services are restarted."""
        return self._is_closed

    @property
    def dead_error(self) -> Unavailable:
        """The error that requests to a closed AsyncLLM raise."""
        return Unavailable("This AsyncLLM was closed.")
