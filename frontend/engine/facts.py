"""Facts about the services behind the frontend, which the services measure or declare. They are not settings."""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from tetrad.frontend.media.items import ModalityFacts
from tetrad.frontend.media.speech import SpeechTask
from tetrad.frontend.request.pooling import PoolingFacts
from tetrad.frontend.request.steps import SchedulerFacts


class KvRole(IntEnum):
    """What an engine core does with the KV blocks of prompts: its option --kv-role."""

    NONE = 0
    PRODUCER = 1
    """It computes prompts, whose blocks others read."""
    CONSUMER = 2
    """It reads the blocks of prompts, and generates."""
    BOTH = 3

    @property
    def sends(self) -> bool:
        """Whether others can read its blocks."""
        return self in (KvRole.PRODUCER, KvRole.BOTH)

    @property
    def receives(self) -> bool:
        """Whether it can read the blocks of others."""
        return self in (KvRole.CONSUMER, KvRole.BOTH)


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """An engine core's description of itself, sent when a session opens; see engine_core.proto."""

    engine_index: int
    epoch: int
    model: str
    max_model_len: int
    num_gpu_blocks: int
    kv_cache_tokens: int
    block_size: int
    dtype: str
    weights_dtype: str
    kv_cache_dtype: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    vocab_size: int
    device: str
    version: str
    supports_lora: bool
    priority_scheduling: bool
    supports_shared_sampling_params: bool
    max_message_bytes: int
    contract_revision: int
    capabilities: tuple[str, ...]
    pooling: PoolingFacts | None
    num_speculative_tokens: int = 0
    max_loras: int = 0
    max_cpu_loras: int = 0
    logits_processors: tuple[str, ...] = ()
    logprobs_mode: str = "raw_logprobs"
    modalities: tuple[ModalityFacts, ...] = ()
    max_media_bytes: int = 0
    kv_role: KvRole = KvRole.NONE
    is_encoder_decoder: bool = False
    supports_transcription: bool = False


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """An engine core's view of a worker; `connected_s`, in seconds, is None while the worker is lost."""

    rank: int
    version: str
    device: str
    connected_s: float | None


@dataclass(frozen=True, slots=True)
class KvGroupFacts:
    """A group of layers that share a block table; `sliding_window` is in tokens, 0: full attention."""

    sliding_window: int
    is_state: bool


@dataclass(frozen=True, slots=True)
class KvCacheFacts:
    """The blocks of an engine core's KV cache, and counts since its start; see KvCacheLoad in engine_core.proto."""

    block_size: int
    num_free_cached_blocks: int
    num_blocks_cached: int
    num_blocks_evicted: int
    num_blocks_passed: int
    num_host_blocks: int
    num_used_host_blocks: int
    num_blocks_swapped_out: int
    num_blocks_swapped_in: int
    num_host_hits: int
    groups: tuple[KvGroupFacts, ...]


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The load of an engine core at one moment, with the requests of all frontends; see engine_core.proto."""

    scheduler: SchedulerFacts
    num_waiting_tokens: int
    num_gpu_blocks: int
    num_free_blocks: int
    paused: bool
    sleeping: bool
    problem: str
    workers: list[WorkerStatus]
    kv_cache: KvCacheFacts | None


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """The tokenizer's description of itself; see tokenizer.proto."""

    model: str
    vocab_size: int
    bos_token_id: int | None
    eos_token_id: int | None
    eos_token_ids: frozenset[int]
    has_chat_template: bool
    chat_template: str
    model_max_length: int | None
    tokenizer_hash: str
    version: str = ""
    generation_config: dict[str, Any] = field(default_factory=dict)
    prompts: dict[str, str] = field(default_factory=dict)
    modalities: tuple[ModalityFacts, ...] = ()
    speech_tasks: tuple[SpeechTask, ...] = ()
