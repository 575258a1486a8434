"""Config: the configuration of an engine, with the names of vLLM's config classes.

Measured facts are from the services, chosen values from EngineArgs.
"""

from dataclasses import dataclass, field

from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.library.engine_args import EngineArgs


@dataclass(frozen=True)
class ModelConfig:
    """The served model. `max_model_len`: largest length of prompt plus output, in tokens."""

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
    """The size of the KV cache. `cache_dtype`: the requested type; None if the services were started elsewhere."""

    block_size: int
    num_gpu_blocks: int
    cache_dtype: str | None


@dataclass(frozen=True)
class SchedulerConfig:
    """The limits of a step: running requests and tokens; and the scheduling policy."""

    max_num_seqs: int
    max_num_batched_tokens: int
    policy: str
    max_model_len: int = 0


@dataclass(frozen=True)
class ParallelConfig:
    """The parallel sizes of the engine. `data_parallel_size`: number of engine cores."""

    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int

    @property
    def world_size(self) -> int:
        """The number of workers of one engine core."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


@dataclass(frozen=True)
class DeviceConfig:
    """The type of the device."""

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
    """The limits of LoRA adapters: their number and rank."""

    max_loras: int
    max_lora_rank: int
    max_cpu_loras: int | None


@dataclass(frozen=True)
class SpeculativeConfig:
    """The maximum number of draft tokens of a request in a step. `method`: empty if the services were started elsewhere."""

    num_speculative_tokens: int
    method: str = ""


@dataclass(frozen=True)
class VllmConfig:
    """The whole configuration. A part that is None does not exist in this engine."""

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
        frontend: a connected frontend.
        args: the arguments that the services were started with; None: they were started elsewhere.
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
