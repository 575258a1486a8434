from google.protobuf import struct_pb2 as _struct_pb2
from google.rpc import status_pb2 as _status_pb2
from tetrad.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_STATE_UNSPECIFIED: _ClassVar[WorkerState]
    WORKER_STATE_STARTED: _ClassVar[WorkerState]
    WORKER_STATE_LOADED: _ClassVar[WorkerState]
    WORKER_STATE_READY: _ClassVar[WorkerState]
    WORKER_STATE_SLEEPING: _ClassVar[WorkerState]
WORKER_STATE_UNSPECIFIED: WorkerState
WORKER_STATE_STARTED: WorkerState
WORKER_STATE_LOADED: WorkerState
WORKER_STATE_READY: WorkerState
WORKER_STATE_SLEEPING: WorkerState

class ExecuteRequest(_message.Message):
    __slots__ = ("step", "hello")
    STEP_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    step: SchedulerOutput
    hello: ExecuteHello
    def __init__(self, step: _Optional[_Union[SchedulerOutput, _Mapping]] = ..., hello: _Optional[_Union[ExecuteHello, _Mapping]] = ...) -> None: ...

class ExecuteHello(_message.Message):
    __slots__ = ("schema_revision", "epoch")
    SCHEMA_REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    schema_revision: int
    epoch: int
    def __init__(self, schema_revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class ExecuteResponse(_message.Message):
    __slots__ = ("output", "ready")
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    output: ModelRunnerOutput
    ready: ExecuteReady
    def __init__(self, output: _Optional[_Union[ModelRunnerOutput, _Mapping]] = ..., ready: _Optional[_Union[ExecuteReady, _Mapping]] = ...) -> None: ...

class ExecuteReady(_message.Message):
    __slots__ = ("schema_revision", "rank", "instance_id", "supports_shared_sampling_params")
    SCHEMA_REVISION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    SUPPORTS_SHARED_SAMPLING_PARAMS_FIELD_NUMBER: _ClassVar[int]
    schema_revision: int
    rank: int
    instance_id: str
    supports_shared_sampling_params: bool
    def __init__(self, schema_revision: _Optional[int] = ..., rank: _Optional[int] = ..., instance_id: _Optional[str] = ..., supports_shared_sampling_params: _Optional[bool] = ...) -> None: ...

class SchedulerOutput(_message.Message):
    __slots__ = ("step_id", "new_requests", "cached_requests", "removed_handles", "total_num_scheduled_tokens", "grammar_bitmask", "draft_tokens", "block_copies", "block_ids_to_zero", "freed_encoder_hashes", "kv_connector_metadata", "swap_out", "swap_in", "shared_sampling_params")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    NEW_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    CACHED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_HANDLES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_NUM_SCHEDULED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_BITMASK_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COPIES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_TO_ZERO_FIELD_NUMBER: _ClassVar[int]
    FREED_ENCODER_HASHES_FIELD_NUMBER: _ClassVar[int]
    KV_CONNECTOR_METADATA_FIELD_NUMBER: _ClassVar[int]
    SWAP_OUT_FIELD_NUMBER: _ClassVar[int]
    SWAP_IN_FIELD_NUMBER: _ClassVar[int]
    SHARED_SAMPLING_PARAMS_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    new_requests: _containers.RepeatedCompositeFieldContainer[NewRequestData]
    cached_requests: CachedRequestData
    removed_handles: bytes
    total_num_scheduled_tokens: int
    grammar_bitmask: GrammarBitmask
    draft_tokens: DraftTokens
    block_copies: BlockCopies
    block_ids_to_zero: bytes
    freed_encoder_hashes: _containers.RepeatedScalarFieldContainer[str]
    kv_connector_metadata: _struct_pb2.Struct
    swap_out: BlockCopies
    swap_in: BlockCopies
    shared_sampling_params: _containers.RepeatedCompositeFieldContainer[_types_pb2.SamplingParams]
    def __init__(self, step_id: _Optional[int] = ..., new_requests: _Optional[_Iterable[_Union[NewRequestData, _Mapping]]] = ..., cached_requests: _Optional[_Union[CachedRequestData, _Mapping]] = ..., removed_handles: _Optional[bytes] = ..., total_num_scheduled_tokens: _Optional[int] = ..., grammar_bitmask: _Optional[_Union[GrammarBitmask, _Mapping]] = ..., draft_tokens: _Optional[_Union[DraftTokens, _Mapping]] = ..., block_copies: _Optional[_Union[BlockCopies, _Mapping]] = ..., block_ids_to_zero: _Optional[bytes] = ..., freed_encoder_hashes: _Optional[_Iterable[str]] = ..., kv_connector_metadata: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., swap_out: _Optional[_Union[BlockCopies, _Mapping]] = ..., swap_in: _Optional[_Union[BlockCopies, _Mapping]] = ..., shared_sampling_params: _Optional[_Iterable[_Union[_types_pb2.SamplingParams, _Mapping]]] = ...) -> None: ...

class NewRequestData(_message.Message):
    __slots__ = ("handle", "token_ids", "num_prompt_tokens", "num_computed_tokens", "num_scheduled_tokens", "block_ids", "sampling_params", "pooling_params", "request_id", "eos_token_id", "lora_request", "mm_features", "prompt_embeds", "trace_headers", "sampling_params_index", "seed")
    class TraceHeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_SCHEDULED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_PARAMS_FIELD_NUMBER: _ClassVar[int]
    POOLING_PARAMS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LORA_REQUEST_FIELD_NUMBER: _ClassVar[int]
    MM_FEATURES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_EMBEDS_FIELD_NUMBER: _ClassVar[int]
    TRACE_HEADERS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_PARAMS_INDEX_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    handle: int
    token_ids: bytes
    num_prompt_tokens: int
    num_computed_tokens: int
    num_scheduled_tokens: int
    block_ids: _containers.RepeatedScalarFieldContainer[bytes]
    sampling_params: _types_pb2.SamplingParams
    pooling_params: _types_pb2.PoolingParams
    request_id: str
    eos_token_id: int
    lora_request: _types_pb2.LoraRequest
    mm_features: _containers.RepeatedCompositeFieldContainer[_types_pb2.MultiModalFeature]
    prompt_embeds: _types_pb2.Tensor
    trace_headers: _containers.ScalarMap[str, str]
    sampling_params_index: int
    seed: int
    def __init__(self, handle: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., num_prompt_tokens: _Optional[int] = ..., num_computed_tokens: _Optional[int] = ..., num_scheduled_tokens: _Optional[int] = ..., block_ids: _Optional[_Iterable[bytes]] = ..., sampling_params: _Optional[_Union[_types_pb2.SamplingParams, _Mapping]] = ..., pooling_params: _Optional[_Union[_types_pb2.PoolingParams, _Mapping]] = ..., request_id: _Optional[str] = ..., eos_token_id: _Optional[int] = ..., lora_request: _Optional[_Union[_types_pb2.LoraRequest, _Mapping]] = ..., mm_features: _Optional[_Iterable[_Union[_types_pb2.MultiModalFeature, _Mapping]]] = ..., prompt_embeds: _Optional[_Union[_types_pb2.Tensor, _Mapping]] = ..., trace_headers: _Optional[_Mapping[str, str]] = ..., sampling_params_index: _Optional[int] = ..., seed: _Optional[int] = ...) -> None: ...

class CachedRequestData(_message.Message):
    __slots__ = ("handles", "num_scheduled_tokens", "num_computed_tokens", "new_blocks")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    NUM_SCHEDULED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NEW_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    handles: bytes
    num_scheduled_tokens: bytes
    num_computed_tokens: bytes
    new_blocks: _containers.RepeatedCompositeFieldContainer[BlockIdColumns]
    def __init__(self, handles: _Optional[bytes] = ..., num_scheduled_tokens: _Optional[bytes] = ..., num_computed_tokens: _Optional[bytes] = ..., new_blocks: _Optional[_Iterable[_Union[BlockIdColumns, _Mapping]]] = ...) -> None: ...

class BlockIdColumns(_message.Message):
    __slots__ = ("num_blocks", "block_ids")
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    num_blocks: bytes
    block_ids: bytes
    def __init__(self, num_blocks: _Optional[bytes] = ..., block_ids: _Optional[bytes] = ...) -> None: ...

class GrammarBitmask(_message.Message):
    __slots__ = ("handles", "bitmask", "num_words")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    BITMASK_FIELD_NUMBER: _ClassVar[int]
    NUM_WORDS_FIELD_NUMBER: _ClassVar[int]
    handles: bytes
    bitmask: bytes
    num_words: int
    def __init__(self, handles: _Optional[bytes] = ..., bitmask: _Optional[bytes] = ..., num_words: _Optional[int] = ...) -> None: ...

class DraftTokens(_message.Message):
    __slots__ = ("handles", "num_tokens", "token_ids")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    handles: bytes
    num_tokens: bytes
    token_ids: bytes
    def __init__(self, handles: _Optional[bytes] = ..., num_tokens: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ...) -> None: ...

class BlockCopies(_message.Message):
    __slots__ = ("source_block_ids", "target_block_ids")
    SOURCE_BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    TARGET_BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    source_block_ids: bytes
    target_block_ids: bytes
    def __init__(self, source_block_ids: _Optional[bytes] = ..., target_block_ids: _Optional[bytes] = ...) -> None: ...

class ModelRunnerOutput(_message.Message):
    __slots__ = ("step_id", "handles", "num_tokens", "token_ids", "logprobs_by_width", "prompt_logprobs", "pooling_outputs", "draft_tokens", "failures", "compute_seconds")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_BY_WIDTH_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    POOLING_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    handles: bytes
    num_tokens: bytes
    token_ids: bytes
    logprobs_by_width: _containers.RepeatedCompositeFieldContainer[SampleLogprobs]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[PromptLogprobs]
    pooling_outputs: _containers.RepeatedCompositeFieldContainer[PoolingOutput]
    draft_tokens: DraftTokens
    failures: _containers.RepeatedCompositeFieldContainer[RequestFailure]
    compute_seconds: float
    def __init__(self, step_id: _Optional[int] = ..., handles: _Optional[bytes] = ..., num_tokens: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., logprobs_by_width: _Optional[_Iterable[_Union[SampleLogprobs, _Mapping]]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[PromptLogprobs, _Mapping]]] = ..., pooling_outputs: _Optional[_Iterable[_Union[PoolingOutput, _Mapping]]] = ..., draft_tokens: _Optional[_Union[DraftTokens, _Mapping]] = ..., failures: _Optional[_Iterable[_Union[RequestFailure, _Mapping]]] = ..., compute_seconds: _Optional[float] = ...) -> None: ...

class SampleLogprobs(_message.Message):
    __slots__ = ("handles", "columns")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    handles: bytes
    columns: _types_pb2.LogprobsColumns
    def __init__(self, handles: _Optional[bytes] = ..., columns: _Optional[_Union[_types_pb2.LogprobsColumns, _Mapping]] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("handle", "start", "columns")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    start: int
    columns: _types_pb2.LogprobsColumns
    def __init__(self, handle: _Optional[int] = ..., start: _Optional[int] = ..., columns: _Optional[_Union[_types_pb2.LogprobsColumns, _Mapping]] = ...) -> None: ...

class PoolingOutput(_message.Message):
    __slots__ = ("handle", "output")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    handle: int
    output: _types_pb2.Tensor
    def __init__(self, handle: _Optional[int] = ..., output: _Optional[_Union[_types_pb2.Tensor, _Mapping]] = ...) -> None: ...

class RequestFailure(_message.Message):
    __slots__ = ("handle", "status")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    status: _status_pb2.Status
    def __init__(self, handle: _Optional[int] = ..., status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class WorkerLifecycleServiceGetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerLifecycleServiceGetInfoResponse(_message.Message):
    __slots__ = ("state", "device", "rank", "version", "schema_revision", "model", "num_blocks", "block_size", "num_requests", "instance_id", "epoch", "engine_pause", "max_message_bytes")
    STATE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_REVISION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENGINE_PAUSE_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    state: WorkerState
    device: str
    rank: int
    version: str
    schema_revision: int
    model: ModelInfo
    num_blocks: int
    block_size: int
    num_requests: int
    instance_id: str
    epoch: int
    engine_pause: EnginePause
    max_message_bytes: int
    def __init__(self, state: _Optional[_Union[WorkerState, str]] = ..., device: _Optional[str] = ..., rank: _Optional[int] = ..., version: _Optional[str] = ..., schema_revision: _Optional[int] = ..., model: _Optional[_Union[ModelInfo, _Mapping]] = ..., num_blocks: _Optional[int] = ..., block_size: _Optional[int] = ..., num_requests: _Optional[int] = ..., instance_id: _Optional[str] = ..., epoch: _Optional[int] = ..., engine_pause: _Optional[_Union[EnginePause, _Mapping]] = ..., max_message_bytes: _Optional[int] = ...) -> None: ...

class EnginePause(_message.Message):
    __slots__ = ("paused", "finish_running")
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    FINISH_RUNNING_FIELD_NUMBER: _ClassVar[int]
    paused: bool
    finish_running: bool
    def __init__(self, paused: _Optional[bool] = ..., finish_running: _Optional[bool] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("model", "architecture", "vocab_size", "max_position_embeddings", "dtype", "num_parameters", "weights_size_bytes", "num_layers", "hidden_size", "weights_dtype")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_POSITION_EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    NUM_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_DTYPE_FIELD_NUMBER: _ClassVar[int]
    model: str
    architecture: str
    vocab_size: int
    max_position_embeddings: int
    dtype: str
    num_parameters: int
    weights_size_bytes: int
    num_layers: int
    hidden_size: int
    weights_dtype: str
    def __init__(self, model: _Optional[str] = ..., architecture: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_position_embeddings: _Optional[int] = ..., dtype: _Optional[str] = ..., num_parameters: _Optional[int] = ..., weights_size_bytes: _Optional[int] = ..., num_layers: _Optional[int] = ..., hidden_size: _Optional[int] = ..., weights_dtype: _Optional[str] = ...) -> None: ...

class LoadModelRequest(_message.Message):
    __slots__ = ("model", "dtype", "quantization", "hf_overrides_json", "random_weights", "seed")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    HF_OVERRIDES_JSON_FIELD_NUMBER: _ClassVar[int]
    RANDOM_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    model: str
    dtype: str
    quantization: str
    hf_overrides_json: str
    random_weights: bool
    seed: int
    def __init__(self, model: _Optional[str] = ..., dtype: _Optional[str] = ..., quantization: _Optional[str] = ..., hf_overrides_json: _Optional[str] = ..., random_weights: _Optional[bool] = ..., seed: _Optional[int] = ...) -> None: ...

class LoadModelResponse(_message.Message):
    __slots__ = ("loaded_bytes", "total_bytes", "model")
    LOADED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    loaded_bytes: int
    total_bytes: int
    model: ModelInfo
    def __init__(self, loaded_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., model: _Optional[_Union[ModelInfo, _Mapping]] = ...) -> None: ...

class GetKvCacheSpecRequest(_message.Message):
    __slots__ = ("block_size",)
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    block_size: int
    def __init__(self, block_size: _Optional[int] = ...) -> None: ...

class GetKvCacheSpecResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[KvCacheGroup]
    def __init__(self, groups: _Optional[_Iterable[_Union[KvCacheGroup, _Mapping]]] = ...) -> None: ...

class KvCacheGroup(_message.Message):
    __slots__ = ("layers", "block_size_bytes", "num_kv_heads", "head_size", "dtype", "sliding_window")
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_SIZE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SLIDING_WINDOW_FIELD_NUMBER: _ClassVar[int]
    layers: _containers.RepeatedScalarFieldContainer[int]
    block_size_bytes: int
    num_kv_heads: int
    head_size: int
    dtype: str
    sliding_window: int
    def __init__(self, layers: _Optional[_Iterable[int]] = ..., block_size_bytes: _Optional[int] = ..., num_kv_heads: _Optional[int] = ..., head_size: _Optional[int] = ..., dtype: _Optional[str] = ..., sliding_window: _Optional[int] = ...) -> None: ...

class DetermineAvailableMemoryRequest(_message.Message):
    __slots__ = ("gpu_memory_utilization", "max_num_batched_tokens")
    GPU_MEMORY_UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    gpu_memory_utilization: float
    max_num_batched_tokens: int
    def __init__(self, gpu_memory_utilization: _Optional[float] = ..., max_num_batched_tokens: _Optional[int] = ...) -> None: ...

class DetermineAvailableMemoryResponse(_message.Message):
    __slots__ = ("available_bytes",)
    AVAILABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    available_bytes: int
    def __init__(self, available_bytes: _Optional[int] = ...) -> None: ...

class InitializeKvCacheRequest(_message.Message):
    __slots__ = ("num_blocks", "block_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "num_host_blocks")
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    num_blocks: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_host_blocks: int
    def __init__(self, num_blocks: _Optional[int] = ..., block_size: _Optional[int] = ..., max_model_len: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., max_num_batched_tokens: _Optional[int] = ..., num_host_blocks: _Optional[int] = ...) -> None: ...

class InitializeKvCacheResponse(_message.Message):
    __slots__ = ("size_bytes", "num_host_blocks")
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    size_bytes: int
    num_host_blocks: int
    def __init__(self, size_bytes: _Optional[int] = ..., num_host_blocks: _Optional[int] = ...) -> None: ...

class WarmUpRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WarmUpResponse(_message.Message):
    __slots__ = ("completed", "total")
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    completed: int
    total: int
    def __init__(self, completed: _Optional[int] = ..., total: _Optional[int] = ...) -> None: ...

class WorkerLifecycleServiceSleepRequest(_message.Message):
    __slots__ = ("level",)
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    level: int
    def __init__(self, level: _Optional[int] = ...) -> None: ...

class WorkerLifecycleServiceSleepResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerLifecycleServiceWakeUpRequest(_message.Message):
    __slots__ = ("tags",)
    TAGS_FIELD_NUMBER: _ClassVar[int]
    tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tags: _Optional[_Iterable[str]] = ...) -> None: ...

class WorkerLifecycleServiceWakeUpResponse(_message.Message):
    __slots__ = ("sleeping",)
    SLEEPING_FIELD_NUMBER: _ClassVar[int]
    sleeping: bool
    def __init__(self, sleeping: _Optional[bool] = ...) -> None: ...

class KeepPauseRequest(_message.Message):
    __slots__ = ("pause",)
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    pause: EnginePause
    def __init__(self, pause: _Optional[_Union[EnginePause, _Mapping]] = ...) -> None: ...

class KeepPauseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerLifecycleServiceLoadLoraRequest(_message.Message):
    __slots__ = ("lora",)
    LORA_FIELD_NUMBER: _ClassVar[int]
    lora: _types_pb2.LoraRequest
    def __init__(self, lora: _Optional[_Union[_types_pb2.LoraRequest, _Mapping]] = ...) -> None: ...

class WorkerLifecycleServiceLoadLoraResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerLifecycleServiceUnloadLoraRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class WorkerLifecycleServiceUnloadLoraResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerLifecycleServiceStartProfileRequest(_message.Message):
    __slots__ = ("prefix",)
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    def __init__(self, prefix: _Optional[str] = ...) -> None: ...

class WorkerLifecycleServiceStartProfileResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerLifecycleServiceStopProfileRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerLifecycleServiceStopProfileResponse(_message.Message):
    __slots__ = ("path",)
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: str
    def __init__(self, path: _Optional[str] = ...) -> None: ...

class WorkerLifecycleServiceCollectiveRpcRequest(_message.Message):
    __slots__ = ("method", "args_json", "kwargs_json")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    ARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    KWARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    method: str
    args_json: str
    kwargs_json: str
    def __init__(self, method: _Optional[str] = ..., args_json: _Optional[str] = ..., kwargs_json: _Optional[str] = ...) -> None: ...

class WorkerLifecycleServiceCollectiveRpcResponse(_message.Message):
    __slots__ = ("result_json",)
    RESULT_JSON_FIELD_NUMBER: _ClassVar[int]
    result_json: str
    def __init__(self, result_json: _Optional[str] = ...) -> None: ...
