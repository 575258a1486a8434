"""Settings of engine_core_svc. Names and meanings are vLLM's where it has one."""

from typing import Literal

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from tetrad.services.settings import Names, ServiceSettings


class EngineCoreSettings(ServiceSettings):
    """Flags, TETRAD_ENGINE_CORE_* variables or the keys of a YAML file (--config FILE)."""

    model_config = SettingsConfigDict(env_prefix="TETRAD_ENGINE_CORE_")

    listen: str = Field("127.0.0.1:50052", description="Address of the gRPC server: host:port or unix:/path.")
    admin_listen: str = Field(
        "127.0.0.1:50054", description="Address of the operators' gRPC server: host:port or unix:/path. Empty: there is none."
    )
    data_parallel_rank: int = Field(
        0, ge=0, description="Place of this engine among several that serve the model: requests can be pinned to it by that."
    )
    model: str = Field("smollm2-135m-instruct", description="Built-in name, directory or .gguf file, as the workers see it.")
    worker_target: str = Field("127.0.0.1:50053", description="Address of the worker.")
    tokenizer_targets: Names = Field(
        ("127.0.0.1:50051",),
        description="Tokenizers, separated by commas, asked when structured outputs first need one. Empty: these are refused.",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field("auto", description="Type of the activations.")
    quantization: str = Field("", description="Quantization method. Empty: as the model's files are.")
    hf_overrides: str = Field("", description="JSON object of values in place of those of the model's config. Empty: none.")
    load_format: Literal["auto", "dummy"] = Field("auto", description="dummy: random weights, for tests.")
    max_model_len: int | Literal["auto"] | None = Field(
        None,
        description="Longest prompt plus output, in tokens. Unset: the model's. auto: that, or what the KV blocks hold.",
    )
    block_size: int = Field(16, ge=1, description="Tokens per KV block; power of two.")
    num_gpu_blocks_override: int | None = Field(None, ge=2, description="KV blocks. Unset: what memory allows.")
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1, description="Share of the device's memory to use.")
    swap_space: float = Field(
        0.0,
        ge=0,
        le=1 << 14,
        description="GiB of the worker's host memory for KV blocks that the prefix cache evicts: they are copied back, not "
        "computed again. 0: none.",
    )
    enable_prefix_caching: bool = Field(True, description="Share KV blocks of equal prefixes.")
    enable_chunked_prefill: bool = Field(True, description="Split prompts over steps.")
    max_num_seqs: int = Field(256, ge=1, description="Requests that run at the same time.")
    max_num_batched_tokens: int | None = Field(
        None,
        ge=1,
        description="Tokens computed in one step. Unset: 2048, or max_model_len if that is more and prompts are not split.",
    )
    long_prefill_token_threshold: int = Field(
        0, ge=0, description="Most tokens of one request in a step that others share. 0: no limit."
    )
    max_decode_slowdown: float = Field(
        1.5,
        ge=0,
        description="How many times as long as without prompts a step with decodes may take: prompts are split accordingly, by "
        "measured times. 0: as long as max_num_batched_tokens takes.",
    )
    scheduling_policy: Literal["fcfs", "priority"] = Field("fcfs", description="Order in which requests are served.")
    priority_order: Literal["high_first", "low_first"] = Field(
        "high_first", description="Whether larger (ours) or smaller (vLLM's) priorities are more urgent."
    )
    pipeline_depth: int = Field(2, ge=1, le=8, description="Steps in flight at the same time.")
    max_num_queued_reqs: int = Field(
        8192, ge=1, description="Most requests that may wait; more are refused with RESOURCE_EXHAUSTED and a time to come back."
    )
    max_num_queued_tokens: int = Field(
        4 << 20, ge=1, description="Most tokens that waiting requests may have together; what exceeds them is refused likewise."
    )
    grammar_timeout_s: float = Field(5.0, gt=0, description="Longest time to compile the constraint of a request, in seconds.")
    grammar_threads: int = Field(2, ge=1, le=32, description="Threads that compute the masks of constrained requests.")
    recovery_timeout_s: float = Field(
        120.0, gt=0, description="Seconds that requests wait for a lost worker before they fail with UNAVAILABLE."
    )
    step_timeout_s: float = Field(
        300.0,
        gt=0,
        description="Seconds that the worker may take for a step, or go without progress while it loads or warms up, "
        "before it is given up like one that died. Requests that wait as long without any step make health report a stall.",
    )
    profile_dir: str = Field(
        "",
        description="Directory that StopProfile writes the engine core's trace to. Empty: profiles in Tetrad's cache "
        "directory.",
    )
    seed: int = Field(0, ge=0, description="Seed of random weights.")

    @field_validator("block_size")
    @classmethod
    def _power_of_two(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError("block_size must be a power of two")
        return value

    @field_validator("max_decode_slowdown")
    @classmethod
    def _not_faster(cls, value: float) -> float:
        if 0 < value < 1:
            raise ValueError("max_decode_slowdown must be at least 1, or 0 for no limit")
        return value
