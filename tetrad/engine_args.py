"""EngineArgs: vLLM's engine arguments, split into the settings of the four services in one place.

Called by LLM, LLMEngine, AsyncLLM and `tetrad serve`. Knows which argument is whose setting; the settings know what is valid.
An argument that is left at its default is not passed on, so the services' environment variables hold. Arguments that vLLM has
and Tetrad has no use for are in drop_in/.
"""

import argparse
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import ValidationError

from tetrad.drop_in.config_overrides import Overrides, changes, overrides_json
from tetrad.drop_in.older_engine_arguments import ALIASES, OlderEngineArguments
from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.frontend.config import FrontendSettings
from tetrad.local_stack import StackSettings
from tetrad.services.errors import InvalidRequest
from tetrad.services.extras import require_extras
from tetrad.services.model_files import DEFAULT_MODEL, Report, resolve_model
from tetrad.services.settings import ServiceSettings, Settings, first_problem
from tetrad.tokenizer_svc.config import TokenizerSettings
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.model_facts.check import check_config

S = TypeVar("S", bound=Settings)
Parser = TypeVar("Parser", bound=argparse.ArgumentParser)

SETTING_OF: dict[str, tuple[type[ServiceSettings], str]] = {
    **{
        name: (EngineCoreSettings, name)
        for name in (
            "dtype",
            "quantization",
            "load_format",
            "max_model_len",
            "block_size",
            "num_gpu_blocks_override",
            "gpu_memory_utilization",
            "swap_space",
            "enable_prefix_caching",
            "enable_chunked_prefill",
            "max_num_seqs",
            "max_num_batched_tokens",
            "long_prefill_token_threshold",
            "max_decode_slowdown",
            "pipeline_depth",
            "scheduling_policy",
            "priority_order",
            "seed",
            "max_num_queued_reqs",
            "max_num_queued_tokens",
        )
    },
    "device": (WorkerSettings, "device"),
    "enforce_eager": (WorkerSettings, "enforce_eager"),
    "threads": (WorkerSettings, "threads"),
    "kv_cache_dtype": (WorkerSettings, "kv_cache_dtype"),
    "kv_cache_memory_gib": (WorkerSettings, "kv_cache_memory_gib"),
    "cpu_offload_gb": (WorkerSettings, "cpu_offload_gb"),
    "max_logprobs": (FrontendSettings, "max_logprobs"),
    "tool_call_parser": (FrontendSettings, "tool_call_parser"),
    "reasoning_parser": (FrontendSettings, "reasoning_parser"),
    "chat_template": (TokenizerSettings, "chat_template"),
}
"""Engine argument -> the service setting that it is."""

_MAX_TOKENIZERS = 64


@dataclass
class EngineArgs(OlderEngineArguments):
    """What an engine is made of. Names and meanings are vLLM's; `None` leaves the choice to the service.

    Arguments of vLLM's that Tetrad has no use for are taken by name: without effect where they cannot change an answer, else
    only with a value that asks for nothing. docs/vllm.md lists them all.

    Args:
        model: a built-in name, a directory, a .gguf file or a Hugging Face id.
        tokenizer: where the tokenizer is, if not with the model.
        revision: branch, tag or commit of a Hugging Face id.
        tokenizer_revision: the tokenizer's, if it differs.
        served_model_name: what clients call the model; by default as `model` says.
        generation_config: "auto" takes sampling defaults from the model's authors, "vllm" does not.
        tool_call_parser: how the model writes tool calls; "auto" asks its chat template, "none" leaves them in the text.
        reasoning_parser: how the model marks its reasoning; likewise.
        chat_template: a file with a Jinja template to use instead of the model's.
        tokenizer_pool_size: tokenizer services to run, each of which can answer for another. None: 2 if served, else 1.
        device: "auto" (an NVIDIA GPU if there is one), "cuda", "cpu", or "sim" for no model at all.
        enforce_eager: on a GPU, launch every kernel by itself instead of replaying graphs; None: do not.
        pipeline_depth: steps in flight at the same time; 1 waits for each step before planning the next.
        threads: compute threads of the CPU; 0 means as many as cores.
        kv_cache_dtype: "float32", "float16", on a GPU also "bfloat16" and "fp8", on a CPU also "int8", or "auto": on a GPU the
            type of the activations; on a CPU float32, but under quantized weights int8, or float16 if the model's keys have
            biases or norms, as Qwen's.
        kv_cache_memory_gib: GiB of memory for keys and values; more than is free is refused. None: on a CPU 4, or less where
            less is free; on a GPU what gpu_memory_utilization leaves.
        cpu_offload_gb: on a GPU, GiB of its memory to save by keeping weights of layers in host memory, from where every step
            copies them.
        max_num_queued_reqs, max_num_queued_tokens: what may wait; more is refused. None: 8192 requests, 4 Mi tokens.
        hf_overrides: values in place of those of the model's config; or a function, which gets the config and returns it
            changed (see drop_in/config_overrides.py).
        disable_log_stats: do not log every 10 s how much is done; LLM does not unless told so.
        log_level: least severe level that the services log to stderr.
        otlp_traces_endpoint: OpenTelemetry collector for the spans of all services: http://host:4317. None: none are made.

    Raises:
        TypeError: an unknown argument.
        InvalidRequest: a wrong value.
        UnsupportedArgument: a value of vLLM's that cannot work yet; an InvalidRequest and a NotImplementedError.
    """

    model: str = DEFAULT_MODEL
    tokenizer: str | None = None
    revision: str | None = None
    tokenizer_revision: str | None = None
    served_model_name: str | list[str] | None = None
    dtype: str = "auto"
    quantization: str | None = None
    load_format: str = "auto"
    max_model_len: int | str | None = None
    block_size: int | None = None
    num_gpu_blocks_override: int | None = None
    pipeline_depth: int = 2
    gpu_memory_utilization: float = 0.9
    swap_space: float = 0
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    long_prefill_token_threshold: int = 0
    max_decode_slowdown: float = 1.5
    scheduling_policy: str = "fcfs"
    priority_order: str = "high_first"
    seed: int | None = None
    max_logprobs: int = 20
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    generation_config: str = "auto"
    chat_template: str | None = None
    tokenizer_pool_size: int | None = None
    device: str = "auto"
    enforce_eager: bool | None = None
    threads: int = 0
    kv_cache_dtype: str = "auto"
    kv_cache_memory_gib: float | None = None
    cpu_offload_gb: float = 0
    log_level: str = "warning"
    otlp_traces_endpoint: str | None = None

    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    hf_overrides: Overrides | None = None
    disable_log_stats: bool = False

    def __post_init__(self) -> None:
        self.check_foreign()
        for older, name in ALIASES.items():
            if getattr(self, older) is not None:
                setattr(self, name, getattr(self, older))
        overrides: Any = self.hf_overrides
        if overrides is not None and not callable(overrides) and not isinstance(overrides, Mapping):
            text = f"hf_overrides must be a dict or a function, got {type(overrides).__name__}."
            raise InvalidRequest(text, field="hf_overrides")
        if self.generation_config not in ("auto", "vllm"):
            raise InvalidRequest(
                f"generation_config={self.generation_config!r} is not supported; use 'auto' or 'vllm'.",
                field="generation_config",
            )
        if self.tokenizer_pool_size is not None and not 1 <= self.tokenizer_pool_size <= _MAX_TOKENIZERS:
            text = f"tokenizer_pool_size must be between 1 and {_MAX_TOKENIZERS}, got {self.tokenizer_pool_size}."
            raise InvalidRequest(text, field="tokenizer_pool_size")

    def stack_settings(self, *, report: Report | None = None, **frontend: Any) -> StackSettings:
        """Return the settings of the four services. Finds the model first, fetching it if need be; this blocks.

        Args:
            report: told when a fetch begins.
            frontend: further settings of the frontend (host, port, ...).

        Raises:
            NotFound: there is no such model.
            InvalidRequest: a value that a service does not take; names the argument.
            Unsupported: packages are missing; names the extra that brings them.
        """
        # Before a model is fetched in vain. The simulated device needs nothing of the worker's.
        require_extras("A model", ["tokenizer", "engine-core", *(["worker"] if self.device != "sim" else [])])
        shared: dict[str, Any] = {"log_level": self.log_level}
        if self.otlp_traces_endpoint is not None:
            shared["otlp_endpoint"] = self.otlp_traces_endpoint
        worker = _build(WorkerSettings, {**shared, **self._chosen(WorkerSettings)})
        check = partial(self._check_config, device=worker.device)
        path = resolve_model(self.model, revision=self.revision, report=report, check=check)
        model = str(path)
        tokenizer: dict[str, Any] = {"model": model, **shared, **self._chosen(TokenizerSettings)}
        if self.tokenizer is not None:
            revision = self.tokenizer_revision or self.revision
            tokenizer["tokenizer"] = str(resolve_model(self.tokenizer, revision=revision, report=report, with_weights=False))
        return StackSettings(
            tokenizer=_build(TokenizerSettings, tokenizer),
            engine_core=_build(EngineCoreSettings, {"model": model, **shared, **self._engine_core_fields(path)}),
            worker=worker,
            frontend=_build(
                FrontendSettings, {**shared, **self.frontend_fields(), **self._chosen(FrontendSettings), **frontend}
            ),
            num_tokenizers=self.tokenizer_pool_size,
        )

    def frontend_fields(self) -> dict[str, Any]:
        """Return the frontend's settings that are derived from several arguments."""
        names = self.served_model_name or [self.model]
        return {
            "model": self.model,
            "served_model_names": (names,) if isinstance(names, str) else tuple(names),
            "use_generation_config": self.generation_config == "auto",
        }

    def _check_config(self, config: Mapping[str, Any], device: str) -> None:
        check_config({**config, **changes(config, self.hf_overrides or {})}, device)

    def _engine_core_fields(self, path: Path) -> dict[str, Any]:
        fields = self._chosen(EngineCoreSettings)
        if self.hf_overrides:
            fields["hf_overrides"] = overrides_json(path, self.hf_overrides)
        return fields

    @staticmethod
    def add_cli_args(parser: Parser) -> Parser:
        """Add a flag for each argument, as vLLM's programs expect, and return the parser."""
        from tetrad.drop_in.command_line import add_flags

        return add_flags(parser)

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """Return the arguments that such a parser read; what it read besides is left alone."""
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in vars(args).items() if name in names})

    def _chosen(self, cls: type[ServiceSettings]) -> dict[str, Any]:
        """Return the settings of one service that differ from the arguments' defaults."""
        values = {
            setting: (getattr(self, name), _DEFAULTS[name]) for name, (owner, setting) in SETTING_OF.items() if owner is cls
        }
        return {setting: value for setting, (value, default) in values.items() if value != default}


_DEFAULTS: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(EngineArgs)}


@dataclass
class AsyncEngineArgs(EngineArgs):
    """EngineArgs under the name that vLLM's async engine uses."""


def _build(cls: type[S], values: dict[str, Any]) -> S:
    try:
        return cls(**values)
    except ValidationError as error:
        name, message = first_problem(cls, error)
        raise InvalidRequest(f"{name}: {message}" if name else message, field=name or None) from error
