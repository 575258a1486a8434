"""Config: the configuration of an engine, under the names of vLLM's config classes.

Facts come from the services, choices from EngineArgs.
"""

from dataclasses import dataclass, field

from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.library.engine_args import EngineArgs


@dataclass(frozen=True)
class ModelConfig:
    """The model that is served. `max_model_len`: longest prompt plus output, in tokens."""

    model: str
    dtype: str
    max_model_len: int
    vocab_size: int
    tokenizer: str = ""
    served_model_name: str = ""
    seed: int | None = None
    runner_type: str = "generate"

    def get_vocab_size(self) -> int:
        """Return the size of the vocabulary."""
        return self.vocab_size


@dataclass(frozen=True)
class CacheConfig:
    """The KV cache: tokens of a block, blocks. `cache_dtype`: as asked for; None if the services were started elsewhere."""

    block_size: int
    num_gpu_blocks: int
    cache_dtype: str | None


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of a step: requests that run at the same time, tokens of one step, and whether priorities count."""

    max_num_seqs: int
    max_num_batched_tokens: int
    policy: str
    max_model_len: int = 0


@dataclass(frozen=True)
class ParallelConfig:
    """Over how many devices the engine is spread. `data_parallel_size`: engine cores that requests go to."""

    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int

    @property
    def world_size(self) -> int:
        """Workers of one engine core."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


@dataclass(frozen=True)
class DeviceConfig:
    """The device."""

    device_type: str


@dataclass(frozen=True)
class DecodingConfig:
    """The backend of structured outputs, for every kind of constraint."""

    backend: str = "guidance"

    @property
    def guided_decoding_backend(self) -> str:
        """The older name of `backend`."""
        return self.backend


@dataclass(frozen=True)
class LoRAConfig:
    """How many adapters there may be, and how large; unknown if somebody else started the services."""

    max_loras: int
    max_lora_rank: int
    max_cpu_loras: int | None


@dataclass(frozen=True)
class SpeculativeConfig:
    """Most drafts of a request in a step. `method`: how they are found; empty if somebody else started the services."""

    num_speculative_tokens: int
    method: str = ""


@dataclass(frozen=True)
class VllmConfig:
    """All of it. A part that is None is one that Tetrad does not have."""

    model_config: ModelConfig
    cache_config: CacheConfig
    scheduler_config: SchedulerConfig
    parallel_config: ParallelConfig
    device_config: DeviceConfig
    structured_outputs_config: DecodingConfig = field(default_factory=DecodingConfig)
    lora_config: LoRAConfig | None = None
    speculative_config: SpeculativeConfig | None = None
    kv_transfer_config: None = None

    @property
    def decoding_config(self) -> DecodingConfig:
        """The older name of `structured_outputs_config`."""
        return self.structured_outputs_config


def config_of(frontend: AsyncLLM, args: EngineArgs | None) -> VllmConfig:
    """Return the configuration of the engine behind a frontend.

    Args:
        frontend: connected.
        args: that the services were started with; None: they were started elsewhere.
    """
    info, names = frontend.engine_info, frontend.model_names
    return VllmConfig(
        ModelConfig(
            names.root,
            info.dtype,
            info.max_model_len,
            info.vocab_size,
            tokenizer=(args.tokenizer if args is not None else None) or frontend.tokenizer_info.model,
            served_model_name=names.names[0],
            seed=None if args is None else args.seed,
        ),
        CacheConfig(info.block_size, info.num_gpu_blocks, None if args is None else args.kv_cache_dtype),
        SchedulerConfig(
            info.max_num_seqs,
            info.max_num_batched_tokens,
            "priority" if info.priority_scheduling else "fcfs",
            info.max_model_len,
        ),
        ParallelConfig(info.tensor_parallel_size, info.pipeline_parallel_size, frontend.num_engines),
        DeviceConfig(info.device),
        lora_config=LoRAConfig(args.max_loras, args.max_lora_rank, args.max_cpu_loras)
        if args is not None and args.enable_lora
        else None,
        speculative_config=_speculative_config(info.num_speculative_tokens, args),
    )


def _speculative_config(num_tokens: int, args: EngineArgs | None) -> SpeculativeConfig | None:
    method = str((args.speculative_config or {}).get("method", "")) if args is not None else ""
    return SpeculativeConfig(num_tokens, method) if num_tokens else None
