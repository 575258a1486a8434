"""LLMEngine: runs added requests step by step, for programs with their own loop; vLLM's class of the same name.

A thin bridge over AsyncLLM; EngineRequests keeps the unfinished requests, on the background event loop. The engine core
continues between two calls of `step`. For one thread at a time.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from tetrad.config import (
    DecodingConfig,
    LoRAConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
    config_of,
)
from tetrad.drop_in.missing_methods import MissingFromLLMEngine
from tetrad.drop_in.shared_verdicts import NO_HINTS, NO_SESSION, ONE_ID, USAGE
from tetrad.frontend.request.outputs import LoRARequest
from tetrad.frontend.request.pooling import PoolingParams
from tetrad.frontend.request.prompts import PromptType
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.library.arguments import check_adapter, tokenization_of
from tetrad.library.async_llm import AsyncLLM
from tetrad.library.engine_args import EngineArgs
from tetrad.library.engine_requests import EngineOutput, EngineRequests
from tetrad.library.llm_services import LocalServices
from tetrad.library.lora_operations import LoraOperations
from tetrad.library.operations import Operations
from tetrad.library.running_llm import RunningLLM
from tetrad.library.stat_loggers import StatLoggerFactory
from tetrad.library.tokenizer import Tokenizer
from tetrad.library.weight_operations import WeightOperations
from tetrad.services.verdicts import ignored, takes

_PROCESSES = ignored(False, "The services are always processes of their own.")


class LLMEngine(LoraOperations, Operations, WeightOperations, MissingFromLLMEngine):
    """An engine with its services, which start and end with it. Made by `from_engine_args`.

    Args:
        running: the running services.
        args: the arguments that they were started with; None: they were started elsewhere.
    """

    def __init__(self, running: RunningLLM, args: EngineArgs | None) -> None:
        self._running, self._args = running, args
        self._frontend = running.frontend
        self._requests = running.run(_requests(self._frontend))

    @classmethod
    @takes(usage_context=USAGE, enable_multiprocessing=_PROCESSES)
    def from_engine_args(cls, engine_args: EngineArgs, stat_loggers: Sequence[StatLoggerFactory] | None = None) -> Self:
        """Start an engine and return it when its services are ready. Errors: see LLM.

        Args:
            engine_args: the arguments of the engine; without `disable_log_stats`, a line with the load is logged every 10 s.
            stat_loggers: factories of further loggers; see stat_loggers.py.
        """
        services, log_stats = LocalServices(engine_args), not engine_args.disable_log_stats
        make = functools.partial(AsyncLLM, services, args=engine_args, stat_loggers=stat_loggers, log_stats=log_stats)
        return cls(RunningLLM(make), engine_args)

    @takes(session_id=NO_SESSION, kv_hints=NO_HINTS)
    def add_request(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams | PoolingParams,
        arrival_time: float | None = None,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        prompt_text: str | None = None,
    ) -> None:
        """Send a request to the engine, which starts it at once.

        Args:
            request_id: id of the request in the outputs of `step`; unique among unfinished requests.
            prompt: text, ids, TextPrompt or TokensPrompt.
            params: the sampling parameters, or the parameters of a pooling model.
            arrival_time: wall clock in seconds; None: now.
            lora_request: adapter of the request.
            tokenization_kwargs: `add_special_tokens`, `truncate_prompt_tokens`, `truncation_side`.
            trace_headers: W3C traceparent and tracestate of the parent span.
            priority: see docs/requests.md.
            prompt_text: text of a prompt of ids, for its outputs.

        Raises:
            TypeError: an argument of the wrong type, or an unknown tokenization argument.
            InvalidRequest: a duplicate id, an empty or too long prompt, an invalid parameter. It is a ValueError.
        """
        if not isinstance(request_id, str):
            raise TypeError(f"request_id must be a string, got {type(request_id).__name__}")
        check_adapter(lora_request)
        if prompt_text is not None and isinstance(prompt, list):
            prompt = {"prompt_token_ids": prompt, "prompt": prompt_text}
        options = {"trace_headers": trace_headers, "priority": priority, **tokenization_of(tokenization_kwargs)}
        if isinstance(params, PoolingParams):
            self._running.run(self._requests.add_pooling(request_id, prompt, params, lora_requests=[lora_request], **options))
            return
        self._running.run(
            self._requests.add(request_id, prompt, params, arrival_time=arrival_time, lora_request=lora_request, **options)
        )

    def step(self) -> list[EngineOutput]:
        """Wait until a request has a new output, and return all outputs since the last call.

        Returns an empty list at once if there is no unfinished request. Raises the TetradError of a failed request.
        """
        return self._running.run(self._requests.next_outputs())

    @takes(internal=ONE_ID)
    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """Abort requests: `step` returns one last output of each, with finish_reason "abort". Unknown ids are ignored."""
        ids = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        self._running.run(self._requests.abort(ids))

    def has_unfinished_requests(self) -> bool:
        """Return whether `step` has further outputs to return, now or later."""
        return self._requests.has_outputs

    def has_unfinished_requests_for_virtual_engine(self, virtual_engine: int) -> bool:
        """Return the value of `has_unfinished_requests`: there is one engine."""
        del virtual_engine
        return self.has_unfinished_requests()

    def has_unfinished_requests_dp(self, has_unfinished: bool) -> bool:
        """Return `has_unfinished`: engine cores do not wait for each other."""
        return has_unfinished

    def get_num_unfinished_requests(self) -> int:
        """Return the number of unfinished requests."""
        return self._requests.num_unfinished

    def execute_dummy_batch(self) -> None:
        """Do nothing: it synchronizes the ranks of an engine, and here these need no dummy batches."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.get_tokenizer()

    @property
    def vllm_config(self) -> VllmConfig:
        """The engine's configuration."""
        return config_of(self._frontend, self._args)

    @property
    def model_config(self) -> ModelConfig:
        """The configuration of the served model."""
        return self.vllm_config.model_config

    def get_vllm_config(self) -> VllmConfig:
        """Return the engine's configuration."""
        return self.vllm_config

    def get_model_config(self) -> ModelConfig:
        """Return the configuration of the served model."""
        return self.vllm_config.model_config

    def get_scheduler_config(self) -> SchedulerConfig:
        """Return the scheduler's configuration."""
        return self.vllm_config.scheduler_config

    def get_parallel_config(self) -> ParallelConfig:
        """Return the parallel sizes of the engine."""
        return self.vllm_config.parallel_config

    def get_decoding_config(self) -> DecodingConfig:
        """Return the configuration of structured outputs."""
        return self.vllm_config.decoding_config

    def get_lora_config(self) -> LoRAConfig | None:
        """Return the limits of adapters; None: LoRA is disabled."""
        return self.vllm_config.lora_config

    def do_log_stats(self) -> None:
        """Let the stat loggers write the statistics since their last output; without any logger, log a line with the load."""
        self._running.run(self._running.llm.do_log_stats())

    def do_log_stats_with_interval(self) -> None:
        """Do nothing: the line is logged every 10 s anyway."""


async def _requests(frontend: Any) -> EngineRequests:
    """Make the EngineRequests on their event loop."""
    return EngineRequests(frontend)
