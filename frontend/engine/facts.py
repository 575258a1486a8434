"""Facts about the services behind the frontend. The services measure or declare them, so they are no settings."""

from dataclasses import dataclass, field
from typing import Any

from tetrad.frontend.request.steps import SchedulerFacts


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine core says of itself when a session opens; see engine_core.proto."""

    engine_index: int
    epoch: int
    model: str
    max_model_len: int
    num_gpu_blocks: int
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


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """How an engine core sees a worker; `connected_s` is None while it is lost."""

    rank: int
    version: str
    device: str
    connected_s: float | None


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """How busy an engine core is at one moment, with the requests of all frontends; see engine_core.proto."""

    scheduler: SchedulerFacts
    num_waiting_tokens: int
    num_gpu_blocks: int
    paused: bool
    sleeping: bool
    problem: str
    workers: list[WorkerStatus]


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """What the tokenizer says of itself; see tokenizer.proto."""

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
