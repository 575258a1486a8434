"""Settings of engine_core_svc. Names and meanings are those of vLLM where it has such an option."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from tetrad.engine_core_svc.core.draft_metrics import Level
from tetrad.engine_core_svc.core.speculative_config import read_speculative_config
from tetrad.services.errors import InvalidRequest
from tetrad.services.settings import Names, OptionalPath, ServiceSettings, split_names


class EngineCoreSettings(ServiceSettings):
    """Options of the engine core.

    Each is a flag (--block-size), an environment variable (TETRAD_ENGINE_CORE_BLOCK_SIZE) or a key of a YAML file
    (block_size, with --config FILE).
    """

    model_config = SettingsConfigDict(env_prefix="TETRAD_ENGINE_CORE_")

    listen: str = Field("127.0.0.1:50052", description="Address of the gRPC server: host:port or unix:/path.")
    admin_listen: str = Field(
        "127.0.0.1:50054", description="Address of the admin gRPC server, for operators: host:port or unix:/path. Empty: none."
    )
    data_parallel_rank: int = Field(
        0,
        ge=0,
        description="Rank of this engine core among those that serve the same model. Clients can pin a request to a rank.",
    )
    model: str = Field(
        "smollm2-135m-instruct", description="Built-in name, directory, .gguf file or Hugging Face id, as seen by the worker."
    )
    worker_target: str = Field(
        "127.0.0.1:50053",
        description="Address of the worker; of several ranks, their addresses in the order of the ranks, separated by commas.",
    )
    tensor_parallel_size: int = Field(
        1,
        ge=1,
        le=64,
        description="Number of workers that compute the model together: each has a part of every layer and of the KV cache.",
    )
    pipeline_parallel_size: int = Field(
        1,
        ge=1,
        le=64,
        description="Number of stages, one behind the other: each has some of the layers, on tensor-parallel-size workers.",
    )
    enable_expert_parallel: bool = Field(
        False,
        description="Divide the experts of a mixture of experts among tensor-parallel-size workers, instead of each expert; if "
        "the workers have expert-targets, also among the workers of several engine cores.",
    )
    tokenizer_targets: Names = Field(
        ("127.0.0.1:50051",),
        description="Addresses of tokenizers, separated by commas; used for structured outputs only. Empty: structured "
        "outputs are refused.",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Data type of activations. auto: the device's choice."
    )
    quantization: str = Field("", description="Quantization method of the weights. Empty: as the model's files say.")
    hf_overrides: str = Field("", description="JSON object whose values replace those of the model's config.json. Empty: none.")
    runner: Literal["auto", "generate", "pooling"] = Field(
        "auto", description="Use of the model. auto: as its files say. pooling: embeddings, also of a generating model."
    )
    convert: Literal["auto", "none", "embed", "classify"] = Field(
        "auto",
        description="Pooling of a generating model. embed: embeddings. classify: classes, by a `score` layer in its files. "
        "With runner generate the model also generates. auto: embed with runner pooling, else none.",
    )
    pooler_config: str = Field(
        "", description="JSON object with fields of vLLM's PoolerConfig; they override the model's files. Empty: none."
    )
    load_format: Literal["auto", "dummy"] = Field(
        "auto", description="How weights are loaded. auto: from the model's files. dummy: random weights, for tests."
    )
    max_model_len: Annotated[int, Field(ge=2)] | Literal["auto"] | None = Field(
        None,
        description="Maximum length of prompt plus output, in tokens. auto, or -1: the model's own maximum, or less if the KV "
        "cache holds less. Unset: the model's own maximum.",
    )
    block_size: int = Field(16, ge=1, description="Number of tokens per KV cache block; a power of two.")
    num_gpu_blocks_override: int | None = Field(
        None, ge=2, description="Number of KV cache blocks. Unset: as many as fit in memory."
    )
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1, description="Fraction of the device's memory to use, 0 to 1.")
    swap_space: float = Field(
        0.0,
        ge=0,
        le=1 << 14,
        description="Host memory, in GiB, for KV cache blocks that the prefix cache evicts; they are copied back instead of "
        "computed again. 0: none.",
    )
    kv_role: Literal["none", "producer", "consumer", "both"] = Field(
        "none",
        description="Moves KV blocks of prompts between engine cores. producer: keeps those of requests that ask for it until "
        "another engine core has read them. consumer: reads those that a request names, instead of computing them.",
    )
    kv_peers: Names = Field(
        (),
        description="Addresses of the workers from which a consumer may read, separated by commas; * and ? stand for any text. "
        "Others are refused: clients name them. Empty: none.",
    )
    kv_address: str = Field(
        "",
        description="Address of this engine core's worker for the workers of others: host:port or unix:/path. Empty: "
        "worker-target.",
    )
    kv_lease_s: float = Field(
        30.0,
        gt=0,
        le=86400,
        description="Seconds that a producer keeps blocks for a reader, and the longest time that a consumer reads.",
    )
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"] = Field(
        "raw_logprobs",
        description="Values that requests get as log-probabilities. raw: the model's. processed: those that a token is drawn "
        "from, after masks, biases, penalties, temperature, top_k, top_p and min_p; -inf, in JSON -9999, is a token that could "
        "not be drawn. logits: not normalised. Those of prompts are always raw.",
    )
    weights_file: OptionalPath = Field(
        None,
        description="File that keeps the last update of the weights, so that it is loaded again after this engine core and its "
        "workers have ended together. Unset: a file beside the socket if a parent process restarts the service, as tetrad "
        "serve does; else the model's own weights are loaded then.",
    )
    enable_prefix_caching: bool = Field(True, description="Share KV cache blocks between requests whose prompts begin alike.")
    enable_chunked_prefill: bool = Field(True, description="Split long prompts over several steps.")
    max_num_seqs: int = Field(256, ge=1, description="Maximum number of requests that run at the same time.")
    max_num_batched_tokens: int | None = Field(
        None,
        ge=1,
        description="Maximum number of tokens computed in one step. Unset: 2048, or max-model-len if that is larger and "
        "prompts are not split.",
    )
    long_prefill_token_threshold: int = Field(
        0, ge=0, description="Maximum number of prompt tokens that one request gets in a step with other requests. 0: no limit."
    )
    max_decode_slowdown: float = Field(
        1.5,
        ge=0,
        description="Factor by which prompts may slow down a step that also generates tokens of other requests, and by which "
        "further sequences of a call (n outputs, many prompts) may slow down other calls; both are spread over steps to stay "
        "below it, by measured step times. 0: limited by max-num-batched-tokens and max-num-seqs alone.",
    )
    scheduling_policy: Literal["fcfs", "priority"] = Field(
        "fcfs",
        description="Order in which requests are scheduled. fcfs: first come, first served. priority: by their priority.",
    )
    priority_order: Literal["high_first", "low_first"] = Field(
        "high_first",
        description="Which priorities are served first. high_first: larger values. low_first: smaller values, as in vLLM.",
    )
    pipeline_depth: int | None = Field(
        None,
        ge=1,
        le=8,
        description="Number of steps in flight at the same time, beside one for each further stage of "
        "pipeline-parallel-size. 1: each step is planned after the previous one has returned. Unset: 2, and 3 while a "
        "device that leaves the cores to the services takes less than 3 ms for a step.",
    )
    speculative_config: str = Field(
        "",
        description="JSON object with vLLM's options of speculative decoding: method (ngram, suffix, draft_model, eagle3 or "
        "mtp), num_speculative_tokens, model, prompt_lookup_min, prompt_lookup_max and others (docs/speculation.md). "
        "Empty: none.",
    )
    enable_logging_iteration_details: bool = Field(
        False,
        description="Log each step: its requests and tokens of prompts and of generation, and its time.",
    )
    kv_cache_metrics: bool = Field(
        False,
        description="Measure how long KV blocks keep their contents and how they are used, for tetrad:engine_kv_block_*.",
    )
    kv_cache_metrics_sample: float = Field(
        0.01,
        gt=0,
        le=1,
        description="Share of the KV blocks that --kv-cache-metrics measures.",
    )
    per_request_spec_decode_metrics: Level = Field(
        "none",
        description="Counts of the drafts of each request, which its answer brings. summary: how many were verified and "
        "accepted. detailed: also those of each step. Needs speculative-config.",
    )
    max_num_queued_reqs: int = Field(
        8192,
        ge=1,
        description="Maximum number of waiting requests; further ones are refused with RESOURCE_EXHAUSTED and a time to retry "
        "after. A call that is alone in the queue is taken whole.",
    )
    max_num_queued_tokens: int = Field(
        4 << 20,
        ge=1,
        description="Maximum number of prompt tokens of all waiting requests; further requests are refused with "
        "RESOURCE_EXHAUSTED.",
    )
    max_total_media_bytes: int = Field(
        1 << 30,
        ge=1,
        description="Maximum bytes of preprocessed media of all unfinished requests; further requests with media are refused "
        "with RESOURCE_EXHAUSTED. Requests with the same image share its bytes.",
    )
    grammar_timeout_s: float = Field(
        5.0, gt=0, description="Maximum time to compile the grammar of a structured output, in seconds."
    )
    grammar_threads: int = Field(
        2, ge=1, le=32, description="Number of threads that compute token masks of structured outputs."
    )
    recovery_timeout_s: float = Field(
        120.0,
        gt=0,
        description="Seconds that requests wait for a lost worker, or for a lost tokenizer's vocabulary, before they fail with "
        "UNAVAILABLE.",
    )
    step_timeout_s: float = Field(
        300.0,
        gt=0,
        description="Seconds that the worker may take for a step, or make no progress while it loads or warms up, before it "
        "counts as lost. If requests wait that long without any step, the health service reports a stall.",
    )
    enable_lora: bool = Field(False, description="Serve LoRA adapters beside the base model.")
    max_loras: int = Field(1, ge=1, le=512, description="Maximum number of different LoRA adapters in one step.")
    max_lora_rank: int = Field(16, ge=1, le=512, description="Maximum rank of a LoRA adapter.")
    max_cpu_loras: int | None = Field(
        None, ge=1, le=65536, description="Maximum number of LoRA adapters in the worker's memory. Unset: max-loras."
    )
    profile_dir: str = Field(
        "",
        description="Directory for the engine core's profiles (StopProfile). Empty: profiles in Tetrad's cache directory.",
    )
    seed: int = Field(0, ge=0, description="Seed of random weights (load-format dummy).")

    @field_validator("max_model_len", mode="before")
    @classmethod
    def _named_auto(cls, value: Any) -> Any:
        return "auto" if str(value) == "-1" else value  # vLLM's number for it

    @field_validator("block_size")
    @classmethod
    def _power_of_two(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError("block_size must be a power of two")
        return value

    @property
    def num_cpu_loras(self) -> int:
        """The maximum number of adapters in the worker's memory."""
        return self.max_loras if self.max_cpu_loras is None else self.max_cpu_loras

    @model_validator(mode="after")
    def _enough_loras(self) -> Self:
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.max_loras:
            raise ValueError(f"max_cpu_loras {self.max_cpu_loras} must be at least max_loras {self.max_loras}")
        return self

    @property
    def worker_targets(self) -> tuple[str, ...]:
        """The addresses of the workers, by rank."""
        return split_names(self.worker_target)

    @property
    def drafter(self) -> str:
        """The method of speculation if a model of its own proposes the tokens; empty: none does."""
        config = read_speculative_config(self.speculative_config)
        return config.method if config is not None and config.method in ("draft_model", "eagle3", "mtp") else ""

    @model_validator(mode="after")
    def _can_move_blocks(self) -> Self:
        if self.kv_role == "none":
            return self
        if self.num_ranks > 1:
            raise ValueError(f"kv_role {self.kv_role} needs a model on one worker; here {self.num_ranks} compute it together")
        if self.drafter:
            raise ValueError(
                f"kv_role {self.kv_role} moves no blocks of a drafter; speculative_config has method {self.drafter}"
            )
        if not self.enable_prefix_caching:
            raise ValueError(f"kv_role {self.kv_role} needs enable_prefix_caching: blocks are found by their content")
        return self

    @property
    def kv_host_and_port(self) -> tuple[str, int]:
        """The address of the worker for workers of other engine cores; a Unix socket has port 0."""
        address = self.kv_address or self.worker_targets[0]
        host, _, port = address.rpartition(":")
        return (host, int(port)) if port.isdecimal() and not address.startswith("unix:") else (address, 0)

    @model_validator(mode="after")
    def _has_a_worker_for_each_rank(self) -> Self:
        if len(self.worker_targets) != self.num_ranks:
            times = f" times pipeline_parallel_size {self.pipeline_parallel_size}" if self.pipeline_parallel_size > 1 else ""
            raise ValueError(
                f"worker_target names {len(self.worker_targets)} workers, but tensor_parallel_size is "
                f"{self.tensor_parallel_size}{times}; name one for each rank, separated by commas"
            )
        twice = next((name for place, name in enumerate(self.worker_targets) if name in self.worker_targets[:place]), None)
        if twice is not None:
            raise ValueError(f"worker_target names {twice!r} twice; each rank needs a worker of its own")
        return self

    @property
    def kept_weights_file(self) -> Path | None:
        """`weights_file` or, for a service that its parent process restarts, a file beside its Unix socket.

        `tetrad serve` does not set `weights_file`: a service of an earlier release would refuse a setting it does not know.
        """
        if self.weights_file is not None or self.lifeline_fd is None or not self.listen.startswith("unix:"):
            return self.weights_file
        return Path(f"{self.listen.removeprefix('unix:')}.weights")

    @property
    def num_ranks(self) -> int:
        """The number of workers that compute the model together."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def steps_in_flight(self) -> int:
        """The maximum number of steps in flight: `pipeline_depth`, and one for each further stage."""
        return (self.pipeline_depth or 3) + self.pipeline_parallel_size - 1

    @property
    def long_steps_in_flight(self) -> int:
        """The maximum number of steps in flight while `PlanTiming` finds that steps are long."""
        return (self.pipeline_depth or 2) + self.pipeline_parallel_size - 1

    @model_validator(mode="after")
    def _has_drafts_to_count(self) -> Self:
        level = self.per_request_spec_decode_metrics
        if level != "none" and not self.speculative_config:
            raise ValueError(
                f"per_request_spec_decode_metrics {level} needs a speculative_config: without it there are no drafts"
            )
        return self

    @field_validator("speculative_config")
    @classmethod
    def _known_options(cls, value: str) -> str:
        try:
            read_speculative_config(value)
        except InvalidRequest as error:
            raise ValueError(error.message) from error
        return value

    @field_validator("max_decode_slowdown")
    @classmethod
    def _not_faster(cls, value: float) -> float:
        if 0 < value < 1:
            raise ValueError("max_decode_slowdown must be at least 1, or 0 for no limit")
        return value
