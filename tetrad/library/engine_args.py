"""EngineArgs: vLLM's engine arguments; converts them to the settings of the four services.

Called by LLM, LLMEngine, AsyncLLM and `tetrad serve`. The services' settings validate the values. An argument with its default
value is not passed on, so the services' environment variables apply. vLLM's arguments that Tetrad does not use are in drop_in/.
"""

import argparse
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from tetrad.drop_in.config_overrides import Overrides, changes, overrides_json, pooler_config_json
from tetrad.drop_in.older_engine_arguments import ALIASES, IN_BYTES, OlderEngineArguments
from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.frontend.config import FrontendSettings
from tetrad.library.engine_argument_checks import check_values, domain_names, processor_names, to_gib
from tetrad.library.engine_settings import SETTING_OF, S, build_settings
from tetrad.services.hub.download import HubAccess, Report
from tetrad.services.hub.model_files import DEFAULT_MODEL, resolve_model
from tetrad.services.message_size import MEDIA_MAX_MESSAGE_BYTES
from tetrad.services.models.inner_configs import overridden
from tetrad.services.models.media_files import reads_media
from tetrad.services.packages import require_packages
from tetrad.services.settings import ServiceSettings
from tetrad.stack.stack_settings import StackSettings
from tetrad.tokenizer_svc.config import TokenizerSettings
from tetrad.worker_svc.checkpoint.model_config import read_model_config
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.families.check import check_model, check_ranks

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)


@dataclass
class EngineArgs(OlderEngineArguments):
    """The arguments of an engine. Names and meanings are vLLM's; `None`: the default of the service.

    vLLM's arguments that Tetrad does not use are accepted as well: without effect if they cannot change an answer, otherwise
    only with a neutral value. docs/vllm.md lists them all.

    Args:
        model: a built-in name, a directory, a .gguf file or a Hugging Face id.
        tokenizer: model whose tokenizer to use, in the same forms. None: the model's own.
        revision: branch, tag or commit of a Hugging Face id. None: the main branch.
        tokenizer_revision: branch, tag or commit of the tokenizer's Hugging Face id. None: `revision`.
        hf_token: token for Hugging Face ids. None or True: HF_TOKEN, or the token of a login; False: none is sent.
        download_dir: directory that holds the files of Hugging Face ids. None: the Hugging Face client's cache (HF_HUB_CACHE).
        served_model_name: names by which clients may call the model. None: `model`.
        generation_config: "auto" takes sampling defaults from the model's generation_config.json, "vllm" does not.
        override_generation_config: sampling defaults that replace the model's: temperature, top_p, top_k, min_p,
            repetition_penalty.
        logprobs_mode: values that requests get as log-probabilities: "raw_logprobs" and "raw_logits" are the model's,
            "processed_logprobs" and "processed_logits" those that a token is drawn from, after all sampling parameters.
        tool_call_parser: format of the model's tool calls; "auto" detects it, "none" leaves tool calls in the text.
        reasoning_parser: format of the model's reasoning; "auto" detects it, "none" leaves reasoning in the text.
        chat_template: file with a Jinja chat template that replaces the model's own.
        tensor_parallel_size: number of workers of an engine core, each with a part of every layer.
        pipeline_parallel_size: number of stages, each with some of the layers, on `tensor_parallel_size` workers.
        enable_expert_parallel: divide the experts of a mixture of experts among the `tensor_parallel_size` workers of all
            `data_parallel_size` engine cores, instead of each expert.
        data_parallel_size: number of engine cores, each with a worker and all weights but for shared experts; requests are
            routed by load and known prefixes.
        num_prefill_engines: number of further engine cores, each with a worker, that compute prompts; those of
            `data_parallel_size` read the KV blocks from them and generate. 0: the same engine core does both.
        tokenizer_pool_size: number of tokenizer services. None: 2 for a server, 1 for a program.
        device: "auto" (an NVIDIA GPU if there is one, else the CPU), "cuda", "cpu", or "sim" (simulated, without a model).
        trust_remote_code: run the model's own code (auto_map in its config.json), only in the worker; the tokenizer is read
            without it.
        allow_functions: run functions of this program in its workers (`apply_model`, `collective_rpc`); for LLM and AsyncLLM.
        logits_processors: classes that change logits before tokens are chosen, or their names ("module:Class"); they run in
            the workers. docs/requests.md says how to write one. None: none.
        enforce_eager: on a GPU, launch every kernel separately instead of replaying CUDA graphs. None: False.
        pipeline_depth: number of steps in flight; 1 plans each step after the previous one has returned. None: 2, and 3 while a
            device that leaves the cores to the services takes less than 3 ms for a step.
        threads: number of compute threads on the CPU; 0: one per core.
        kv_cache_dtype: "float32", "float16", on a GPU also "bfloat16" and "fp8", on a CPU also "int8", or "auto": on a GPU the
            type of the activations; on a CPU float32, but under quantized weights int8, or float16 if the model's keys have
            biases or norms, as Qwen's.
        kv_cache_memory_gib: memory of the KV cache in GiB; more than the free memory is refused. None: on a CPU 4, or less if
            less is free; on a GPU the memory that gpu_memory_utilization leaves.
        cpu_offload_gb: GiB of GPU memory to save: weights of layers stay in host memory and are copied in every step.
        max_num_queued_reqs, max_num_queued_tokens: maximum number of waiting requests, and of their prompt tokens; further
            requests are refused. None: 8192 requests, 4 Mi tokens.
        hf_overrides: values that replace those of the model's config.json, of an inner config such as text_config one by one;
            or a function that returns the changed config (see drop_in/config_overrides.py).
        speculative_config: vLLM's options of speculative decoding, a dict: {"method": "ngram", "num_speculative_tokens": 8};
            docs/speculation.md has them all. None: no speculative decoding.
        enable_logging_iteration_details: log each step of the engine core.
        kv_cache_metrics: measure the lives of KV blocks, for the metrics `tetrad:engine_kv_block_*`.
        kv_cache_metrics_sample: the share of the blocks that are measured.
        per_request_spec_decode_metrics: "summary" or "detailed" counts the drafts of each request, for
            `CompletionOutput.spec_decode_metrics`.
        runner: "auto" (from the model's files), "generate" or "pooling", with which a generative model makes embeddings.
        convert: pooling task of a generative model: "embed", "classify" (with a `score` layer in its files); "auto" or "none".
        pooler_config: pooling settings that override the model's files: a dict, or an object with the fields of vLLM's
            PoolerConfig.
        disable_log_stats: do not log statistics every 10 s; LLM logs them only if this is False.
        enable_lora: serve LoRA adapters in addition to the base model.
        max_loras: maximum number of different adapters in one step.
        max_lora_rank: maximum rank of an adapter.
        max_cpu_loras: maximum number of adapters in memory; others are read again when they are needed. None: max_loras.
        default_mm_loras: adapters of requests that name none, by the media of their prompts: {"audio": path}.
        limit_mm_per_prompt: maximum number of items in a prompt: {"image": 4, "video": 1}. None: 999, or the model's own limit.
        language_model_only: refuse media, and do not load the vision or audio model.
        allowed_local_media_path: directory whose files messages may name as file: URLs of images. Empty: none.
        allowed_media_domains: hosts from which images of messages are fetched (http, https); "*": all public ones. None: none.
        mm_processor_kwargs: settings of the model's image processor that replace those of its files, as {"max_pixels": 200704};
            those of a request come before them.
        media_io_kwargs: how media files are read, unless a request says it: {"video": {"num_frames": 16, "fps": 1}}.
        mm_processor_cache_gb: GiB of preprocessed images that each tokenizer service keeps. None: 0.25.
        enable_prompt_embeds: accept prompts as embeddings over HTTP, too; LLM and AsyncLLM always accept them.
        enable_mm_embeds: accept embeddings of images and audio in prompts, in place of files.
        log_level: minimum severity of events that the services log to stderr.
        otlp_traces_endpoint: OpenTelemetry collector that receives all services' spans: http://host:4317. None: no spans.

    Raises:
        TypeError: an unknown argument.
        InvalidRequest: an invalid value.
        UnsupportedArgument: a value of vLLM's that Tetrad does not support; an InvalidRequest and a NotImplementedError.
    """

    model: str = DEFAULT_MODEL
    tokenizer: str | None = None
    revision: str | None = None
    tokenizer_revision: str | None = None
    hf_token: str | bool | None = None
    download_dir: str | None = None
    served_model_name: str | list[str] | None = None
    dtype: str = "auto"
    quantization: str | None = None
    load_format: str = "auto"
    max_model_len: int | str | None = None
    block_size: int | None = None
    num_gpu_blocks_override: int | None = None
    pipeline_depth: int | None = None
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
    logprobs_mode: str = "raw_logprobs"
    stream_interval: int = 1
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    generation_config: str = "auto"
    override_generation_config: dict[str, Any] | None = None
    chat_template: str | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    enable_expert_parallel: bool = False
    data_parallel_size: int = 1
    num_prefill_engines: int = 0
    tokenizer_pool_size: int | None = None
    device: str = "auto"
    trust_remote_code: bool = False
    allow_functions: bool = False
    logits_processors: Sequence[str | type] | None = None
    enforce_eager: bool | None = None
    threads: int = 0
    kv_cache_dtype: str = "auto"
    kv_cache_memory_gib: float | None = None
    cpu_offload_gb: float = 0
    enable_lora: bool = False
    max_loras: int = 1
    max_lora_rank: int = 16
    max_cpu_loras: int | None = None
    default_mm_loras: dict[str, str] | None = None
    limit_mm_per_prompt: dict[str, Any] | None = None
    language_model_only: bool = False
    allowed_local_media_path: str | Path = ""
    allowed_media_domains: Sequence[str] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, dict[str, Any]] | None = None
    mm_processor_cache_gb: float | None = None
    enable_prompt_embeds: bool = False
    enable_mm_embeds: bool = False
    log_level: str = "warning"
    otlp_traces_endpoint: str | None = None

    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    hf_overrides: Overrides | None = None
    speculative_config: dict[str, Any] | None = None
    per_request_spec_decode_metrics: str = "none"
    enable_logging_iteration_details: bool = False
    kv_cache_metrics: bool = False
    kv_cache_metrics_sample: float = 0.01
    runner: str = "auto"
    convert: str = "auto"
    pooler_config: Any = None
    disable_log_stats: bool = False

    def __post_init__(self) -> None:
        self.given: frozenset[str] = frozenset()
        # Values of settings that neither an argument nor a variable chooses.
        self.fallbacks: dict[str, Any] = {}
        self.check_foreign()
        self._apply_other_names()
        check_values(vars(self))
        self.logits_processors = processor_names(self.logits_processors)
        self.allowed_media_domains = domain_names(self.allowed_media_domains)
        if self.task == "embed":
            self.runner = "pooling"

    def _apply_other_names(self) -> None:
        """Set arguments that are given by another name of vLLM's, or in bytes."""
        for other, name in ALIASES.items():
            if getattr(self, other) is not None:
                setattr(self, name, getattr(self, other))
        for other, name in IN_BYTES.items():
            if (size_bytes := getattr(self, other)) is not None:
                setattr(self, name, to_gib(other, size_bytes))

    def stack_settings(self, *, report: Report | None = None, **frontend: Any) -> StackSettings:
        """Return the settings of the four services. Finds the model, and downloads it if necessary; this blocks.

        Args:
            report: called when a download starts.
            frontend: further settings of the frontend (host, port, ...).

        Raises:
            NotFound: there is no such model.
            InvalidRequest: a service does not accept a value; the error names the argument.
            Unsupported: packages are missing; the error names them.
        """
        # Checked before a model is downloaded. The simulated device needs none of the worker's packages.
        require_packages("A model", ["tokenizer", "engine-core", *(["worker"] if self.device != "sim" else [])])
        shared: dict[str, Any] = {}
        if self.otlp_traces_endpoint is not None:
            shared["otlp_endpoint"] = self.otlp_traces_endpoint
        worker_fields = {**shared, **self._chosen(WorkerSettings), **self._processor_fields()}
        worker = self._service(WorkerSettings, worker_fields)
        check = partial(self._check_config, worker=worker)
        access = HubAccess(self.hf_token, Path(self.download_dir).expanduser() if self.download_dir else None)
        path = resolve_model(self.model, revision=self.revision, report=report, check=check, access=access)
        if self.tensor_parallel_size * self.pipeline_parallel_size > 1 or self.enable_expert_parallel:
            self._check_ranks(read_model_config(path), worker)  # also for local files: workers take seconds to refuse them
        if self._takes_media(path):
            self.fallbacks = {"max_message_bytes": MEDIA_MAX_MESSAGE_BYTES, **self.fallbacks}
        model = str(path)
        tokenizer: dict[str, Any] = {"model": model, **shared, **self._tokenizer_fields()}
        if self.tokenizer is not None:
            revision = self.tokenizer_revision or self.revision
            found = resolve_model(self.tokenizer, revision=revision, report=report, with_weights=False, access=access)
            tokenizer["tokenizer"] = str(found)
        return StackSettings(
            tokenizer=self._service(TokenizerSettings, tokenizer),
            engine_core=self._service(EngineCoreSettings, {"model": model, **shared, **self._engine_core_fields(path)}),
            # Again, since some values depend on the model's files.
            worker=self._service(WorkerSettings, worker_fields),
            frontend=self._service(
                FrontendSettings, {**shared, **self.frontend_fields(), **self._chosen(FrontendSettings), **frontend}
            ),
            num_tokenizers=self.tokenizer_pool_size,
            data_parallel_size=self.data_parallel_size,
            num_prefill_engines=self.num_prefill_engines,
            tensor_parallel_size=self.tensor_parallel_size,
            pipeline_parallel_size=self.pipeline_parallel_size,
        )

    def _service(self, cls: type[S], values: dict[str, Any]) -> S:
        """Return the settings of one service. A variable of the service has precedence over the fallbacks only."""
        if self._is_chosen("log_level"):
            values = {**values, "log_level": self.log_level}
        settings = build_settings(cls, values)
        fallbacks = {"log_level": self.log_level, "served_model_names": (self.model,), **self.fallbacks}
        left = {
            name: value
            for name, value in fallbacks.items()
            if name in cls.model_fields and name not in settings.model_fields_set
        }
        # Built again, since `replaced` would count every field as set: LocalStack reads which ones were chosen.
        return build_settings(cls, {**values, **left}) if left else settings

    def frontend_fields(self) -> dict[str, Any]:
        """Return the frontend settings that depend on several arguments."""
        names = self.served_model_name
        return {
            "model": self.model,
            **({"served_model_names": (names,) if isinstance(names, str) else tuple(names)} if names else {}),
            **({"use_generation_config": self.generation_config == "auto"} if self._is_chosen("generation_config") else {}),
            **({"override_generation_config": json.dumps(overrides)} if (overrides := self.override_generation_config) else {}),
            **({"default_mm_loras": json.dumps(self.default_mm_loras)} if self.default_mm_loras else {}),
            **self.media_settings(),
        }

    def media_settings(self) -> dict[str, Any]:
        """Return the frontend settings of images in prompts that the arguments set."""
        limits = {"image": 0, "audio": 0, "video": 0} if self.language_model_only else self.limit_mm_per_prompt
        return {
            **({"limit_mm_per_prompt": json.dumps(limits)} if limits is not None else {}),
            **({"allowed_local_media_path": self.allowed_local_media_path} if self.allowed_local_media_path else {}),
            **({"enable_mm_embeds": True} if self.enable_mm_embeds else {}),
            **({"allowed_media_domains": self.allowed_media_domains} if self.allowed_media_domains else {}),
        }

    def _takes_media(self, path: Path) -> bool:
        limits = self.limit_mm_per_prompt or {}
        # With embeddings, a limit of 0 concerns files alone.
        has_none = all(limits.get(modality) == 0 for modality in ("image", "audio", "video")) and not self.enable_mm_embeds
        return not self.language_model_only and not has_none and path.is_dir() and reads_media(path)

    def _processor_fields(self) -> dict[str, str]:
        """Return the settings of the image processor, which the tokenizer runs; the worker reads the largest size from them."""
        return {"mm_processor_kwargs": json.dumps(self.mm_processor_kwargs)} if self.mm_processor_kwargs else {}

    def _tokenizer_fields(self) -> dict[str, Any]:
        fields = {**self._chosen(TokenizerSettings), **self._processor_fields()}
        if self.media_io_kwargs:
            fields["media_io_kwargs"] = json.dumps(self.media_io_kwargs)
        if self.mm_processor_cache_gb is not None:
            fields["media_cache_bytes"] = int(self.mm_processor_cache_gb * (1 << 30))
        return fields

    def _check_config(self, config: Mapping[str, Any], worker: WorkerSettings) -> None:
        check_model(self._changed(config), worker.device, trusts_code=worker.trust_remote_code)
        self._check_ranks(config, worker)

    def _check_ranks(self, config: Mapping[str, Any], worker: WorkerSettings) -> None:
        check_ranks(
            self._changed(config),
            self.tensor_parallel_size,
            self.pipeline_parallel_size,
            expert_parallel=self.enable_expert_parallel,
            num_engines=self.data_parallel_size,
            device=worker.device,
        )

    def _changed(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        return overridden(config, changes(config, self.hf_overrides or {}))

    def _engine_core_fields(self, path: Path) -> dict[str, Any]:
        fields = self._chosen(EngineCoreSettings)
        if self.hf_overrides:
            fields["hf_overrides"] = overrides_json(path, self.hf_overrides)
        if self.speculative_config:
            fields["speculative_config"] = json.dumps(self.speculative_config)
        if self.pooler_config is not None:
            fields["pooler_config"] = pooler_config_json(self.pooler_config)
        return fields

    @staticmethod
    def add_cli_args(parser: Parser) -> Parser:
        """Add a flag for each argument, as programs made for vLLM expect, and return the parser."""
        from tetrad.drop_in.command_line import add_flags

        return add_flags(parser)

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """Return the arguments in the result of such a parser; other values are ignored."""
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in vars(args).items() if name in names})

    def _chosen(self, cls: type[ServiceSettings]) -> dict[str, Any]:
        """Return the settings of one service that a command line gives, or that differ from the arguments' defaults."""
        values = {name: (setting, getattr(self, name)) for name, (owner, setting) in SETTING_OF.items() if owner is cls}
        return {setting: value for name, (setting, value) in values.items() if self._is_chosen(name)}

    def _is_chosen(self, name: str) -> bool:
        return name in self.given or getattr(self, name) != _DEFAULTS[name]


_DEFAULTS: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(EngineArgs)}


@dataclass
class AsyncEngineArgs(EngineArgs):
    """EngineArgs with the name that vLLM's async engine uses."""
