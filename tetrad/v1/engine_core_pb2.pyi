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

class EngineNoticeKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENGINE_NOTICE_KIND_UNSPECIFIED: _ClassVar[EngineNoticeKind]
    ENGINE_NOTICE_KIND_WORKER_LOST: _ClassVar[EngineNoticeKind]
    ENGINE_NOTICE_KIND_RECOVERED: _ClassVar[EngineNoticeKind]
    ENGINE_NOTICE_KIND_DRAINING: _ClassVar[EngineNoticeKind]
    ENGINE_NOTICE_KIND_SLEEPING: _ClassVar[EngineNoticeKind]
    ENGINE_NOTICE_KIND_AWAKE: _ClassVar[EngineNoticeKind]
    ENGINE_NOTICE_KIND_STALLED: _ClassVar[EngineNoticeKind]

class EngineCoreEventType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENGINE_CORE_EVENT_TYPE_UNSPECIFIED: _ClassVar[EngineCoreEventType]
    ENGINE_CORE_EVENT_TYPE_QUEUED: _ClassVar[EngineCoreEventType]
    ENGINE_CORE_EVENT_TYPE_SCHEDULED: _ClassVar[EngineCoreEventType]
    ENGINE_CORE_EVENT_TYPE_PREEMPTED: _ClassVar[EngineCoreEventType]

class PauseMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PAUSE_MODE_UNSPECIFIED: _ClassVar[PauseMode]
    PAUSE_MODE_ABORT: _ClassVar[PauseMode]
    PAUSE_MODE_WAIT: _ClassVar[PauseMode]
    PAUSE_MODE_KEEP: _ClassVar[PauseMode]
ENGINE_NOTICE_KIND_UNSPECIFIED: EngineNoticeKind
ENGINE_NOTICE_KIND_WORKER_LOST: EngineNoticeKind
ENGINE_NOTICE_KIND_RECOVERED: EngineNoticeKind
ENGINE_NOTICE_KIND_DRAINING: EngineNoticeKind
ENGINE_NOTICE_KIND_SLEEPING: EngineNoticeKind
ENGINE_NOTICE_KIND_AWAKE: EngineNoticeKind
ENGINE_NOTICE_KIND_STALLED: EngineNoticeKind
ENGINE_CORE_EVENT_TYPE_UNSPECIFIED: EngineCoreEventType
ENGINE_CORE_EVENT_TYPE_QUEUED: EngineCoreEventType
ENGINE_CORE_EVENT_TYPE_SCHEDULED: EngineCoreEventType
ENGINE_CORE_EVENT_TYPE_PREEMPTED: EngineCoreEventType
PAUSE_MODE_UNSPECIFIED: PauseMode
PAUSE_MODE_ABORT: PauseMode
PAUSE_MODE_WAIT: PauseMode
PAUSE_MODE_KEEP: PauseMode

class SessionRequest(_message.Message):
    __slots__ = ("add", "abort", "hello")
    ADD_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    add: AddRequests
    abort: AbortRequests
    hello: SessionHello
    def __init__(self, add: _Optional[_Union[AddRequests, _Mapping]] = ..., abort: _Optional[_Union[AbortRequests, _Mapping]] = ..., hello: _Optional[_Union[SessionHello, _Mapping]] = ...) -> None: ...

class SessionHello(_message.Message):
    __slots__ = ("client_id", "schema_revision", "max_message_bytes", "contract_revision", "capabilities")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_REVISION_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_REVISION_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    schema_revision: int
    max_message_bytes: int
    contract_revision: int
    capabilities: _containers.RepeatedScalarFieldContainer[_types_pb2.Capability]
    def __init__(self, client_id: _Optional[str] = ..., schema_revision: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., contract_revision: _Optional[int] = ..., capabilities: _Optional[_Iterable[_Union[_types_pb2.Capability, str]]] = ...) -> None: ...

class AddRequests(_message.Message):
    __slots__ = ("requests", "shared_sampling_params")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    SHARED_SAMPLING_PARAMS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[EngineCoreRequest]
    shared_sampling_params: _containers.RepeatedCompositeFieldContainer[_types_pb2.SamplingParams]
    def __init__(self, requests: _Optional[_Iterable[_Union[EngineCoreRequest, _Mapping]]] = ..., shared_sampling_params: _Optional[_Iterable[_Union[_types_pb2.SamplingParams, _Mapping]]] = ...) -> None: ...

class AbortRequests(_message.Message):
    __slots__ = ("request_ids",)
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class EngineCoreRequest(_message.Message):
    __slots__ = ("request_id", "handle", "prompt_token_ids", "sampling_params", "pooling_params", "eos_token_id", "priority", "arrival_time_unix_nanos", "resumed_output_token_ids", "deadline_unix_nanos", "cache_salt", "lora_request", "mm_features", "data_parallel_rank", "trace_headers", "prompt_embeds", "prompt_is_token_ids", "external_req_id", "resumable", "reasoning_ended", "session_id", "kv_transfer_params", "resumed", "sampling_params_index", "seed", "timeout_nanos", "kv_transfer", "encoder_prompt_token_ids", "predicted_token_ids", "call_number")
    class TraceHeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_PARAMS_FIELD_NUMBER: _ClassVar[int]
    POOLING_PARAMS_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_TIME_UNIX_NANOS_FIELD_NUMBER: _ClassVar[int]
    RESUMED_OUTPUT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_UNIX_NANOS_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    LORA_REQUEST_FIELD_NUMBER: _ClassVar[int]
    MM_FEATURES_FIELD_NUMBER: _ClassVar[int]
    DATA_PARALLEL_RANK_FIELD_NUMBER: _ClassVar[int]
    TRACE_HEADERS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_EMBEDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_REQ_ID_FIELD_NUMBER: _ClassVar[int]
    RESUMABLE_FIELD_NUMBER: _ClassVar[int]
    REASONING_ENDED_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    KV_TRANSFER_PARAMS_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_PARAMS_INDEX_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_NANOS_FIELD_NUMBER: _ClassVar[int]
    KV_TRANSFER_FIELD_NUMBER: _ClassVar[int]
    ENCODER_PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CALL_NUMBER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    handle: int
    prompt_token_ids: bytes
    sampling_params: _types_pb2.SamplingParams
    pooling_params: _types_pb2.PoolingParams
    eos_token_id: int
    priority: int
    arrival_time_unix_nanos: int
    resumed_output_token_ids: bytes
    deadline_unix_nanos: int
    cache_salt: str
    lora_request: _types_pb2.LoraRequest
    mm_features: _containers.RepeatedCompositeFieldContainer[_types_pb2.MultiModalFeature]
    data_parallel_rank: int
    trace_headers: _containers.ScalarMap[str, str]
    prompt_embeds: _types_pb2.Tensor
    prompt_is_token_ids: bytes
    external_req_id: str
    resumable: bool
    reasoning_ended: bool
    session_id: str
    kv_transfer_params: _struct_pb2.Struct
    resumed: bool
    sampling_params_index: int
    seed: int
    timeout_nanos: int
    kv_transfer: _types_pb2.KvTransferParams
    encoder_prompt_token_ids: bytes
    predicted_token_ids: bytes
    call_number: int
    def __init__(self, request_id: _Optional[str] = ..., handle: _Optional[int] = ..., prompt_token_ids: _Optional[bytes] = ..., sampling_params: _Optional[_Union[_types_pb2.SamplingParams, _Mapping]] = ..., pooling_params: _Optional[_Union[_types_pb2.PoolingParams, _Mapping]] = ..., eos_token_id: _Optional[int] = ..., priority: _Optional[int] = ..., arrival_time_unix_nanos: _Optional[int] = ..., resumed_output_token_ids: _Optional[bytes] = ..., deadline_unix_nanos: _Optional[int] = ..., cache_salt: _Optional[str] = ..., lora_request: _Optional[_Union[_types_pb2.LoraRequest, _Mapping]] = ..., mm_features: _Optional[_Iterable[_Union[_types_pb2.MultiModalFeature, _Mapping]]] = ..., data_parallel_rank: _Optional[int] = ..., trace_headers: _Optional[_Mapping[str, str]] = ..., prompt_embeds: _Optional[_Union[_types_pb2.Tensor, _Mapping]] = ..., prompt_is_token_ids: _Optional[bytes] = ..., external_req_id: _Optional[str] = ..., resumable: _Optional[bool] = ..., reasoning_ended: _Optional[bool] = ..., session_id: _Optional[str] = ..., kv_transfer_params: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., resumed: _Optional[bool] = ..., sampling_params_index: _Optional[int] = ..., seed: _Optional[int] = ..., timeout_nanos: _Optional[int] = ..., kv_transfer: _Optional[_Union[_types_pb2.KvTransferParams, _Mapping]] = ..., encoder_prompt_token_ids: _Optional[bytes] = ..., predicted_token_ids: _Optional[bytes] = ..., call_number: _Optional[int] = ...) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("outputs", "rejected", "notice", "ready")
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    outputs: EngineCoreOutputs
    rejected: RequestRejected
    notice: EngineNotice
    ready: EngineInfo
    def __init__(self, outputs: _Optional[_Union[EngineCoreOutputs, _Mapping]] = ..., rejected: _Optional[_Union[RequestRejected, _Mapping]] = ..., notice: _Optional[_Union[EngineNotice, _Mapping]] = ..., ready: _Optional[_Union[EngineInfo, _Mapping]] = ...) -> None: ...

class RequestRejected(_message.Message):
    __slots__ = ("request_id", "status")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    status: _status_pb2.Status
    def __init__(self, request_id: _Optional[str] = ..., status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class EngineNotice(_message.Message):
    __slots__ = ("kind", "text")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    kind: EngineNoticeKind
    text: str
    def __init__(self, kind: _Optional[_Union[EngineNoticeKind, str]] = ..., text: _Optional[str] = ...) -> None: ...

class EngineInfo(_message.Message):
    __slots__ = ("engine_index", "epoch", "model", "max_model_len", "num_gpu_blocks", "block_size", "dtype", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "max_num_seqs", "max_num_batched_tokens", "version", "schema_revision", "vocab_size", "device", "supports_lora", "priority_scheduling", "supports_shared_sampling_params", "max_message_bytes", "weights_dtype", "kv_cache_dtype", "contract_revision", "capabilities", "instance_id", "kv_role", "kv_connector", "lora_limits", "modalities", "encoder_cache_size", "pooling", "num_speculative_tokens", "weight_version", "kv_cache_size_bytes", "num_host_blocks", "max_media_bytes", "kv_cache_tokens", "logits_processors", "weights_path", "is_encoder_decoder", "supports_transcription", "logprobs_mode", "checked_weights_path")
    ENGINE_INDEX_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    NUM_GPU_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    DATA_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_REVISION_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SUPPORTS_LORA_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_SCHEDULING_FIELD_NUMBER: _ClassVar[int]
    SUPPORTS_SHARED_SAMPLING_PARAMS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_DTYPE_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_REVISION_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    KV_ROLE_FIELD_NUMBER: _ClassVar[int]
    KV_CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    LORA_LIMITS_FIELD_NUMBER: _ClassVar[int]
    MODALITIES_FIELD_NUMBER: _ClassVar[int]
    ENCODER_CACHE_SIZE_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    NUM_SPECULATIVE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_MEDIA_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGITS_PROCESSORS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_PATH_FIELD_NUMBER: _ClassVar[int]
    IS_ENCODER_DECODER_FIELD_NUMBER: _ClassVar[int]
    SUPPORTS_TRANSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_MODE_FIELD_NUMBER: _ClassVar[int]
    CHECKED_WEIGHTS_PATH_FIELD_NUMBER: _ClassVar[int]
    engine_index: int
    epoch: int
    model: str
    max_model_len: int
    num_gpu_blocks: int
    block_size: int
    dtype: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    version: str
    schema_revision: int
    vocab_size: int
    device: str
    supports_lora: bool
    priority_scheduling: bool
    supports_shared_sampling_params: bool
    max_message_bytes: int
    weights_dtype: str
    kv_cache_dtype: str
    contract_revision: int
    capabilities: _containers.RepeatedScalarFieldContainer[_types_pb2.Capability]
    instance_id: str
    kv_role: _types_pb2.KvRole
    kv_connector: str
    lora_limits: _types_pb2.LoraLimits
    modalities: _containers.RepeatedCompositeFieldContainer[_types_pb2.ModalityInfo]
    encoder_cache_size: int
    pooling: _types_pb2.PoolingInfo
    num_speculative_tokens: int
    weight_version: str
    kv_cache_size_bytes: int
    num_host_blocks: int
    max_media_bytes: int
    kv_cache_tokens: int
    logits_processors: _containers.RepeatedScalarFieldContainer[str]
    weights_path: str
    is_encoder_decoder: bool
    supports_transcription: bool
    logprobs_mode: str
    checked_weights_path: str
    def __init__(self, engine_index: _Optional[int] = ..., epoch: _Optional[int] = ..., model: _Optional[str] = ..., max_model_len: _Optional[int] = ..., num_gpu_blocks: _Optional[int] = ..., block_size: _Optional[int] = ..., dtype: _Optional[str] = ..., tensor_parallel_size: _Optional[int] = ..., pipeline_parallel_size: _Optional[int] = ..., data_parallel_size: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., max_num_batched_tokens: _Optional[int] = ..., version: _Optional[str] = ..., schema_revision: _Optional[int] = ..., vocab_size: _Optional[int] = ..., device: _Optional[str] = ..., supports_lora: _Optional[bool] = ..., priority_scheduling: _Optional[bool] = ..., supports_shared_sampling_params: _Optional[bool] = ..., max_message_bytes: _Optional[int] = ..., weights_dtype: _Optional[str] = ..., kv_cache_dtype: _Optional[str] = ..., contract_revision: _Optional[int] = ..., capabilities: _Optional[_Iterable[_Union[_types_pb2.Capability, str]]] = ..., instance_id: _Optional[str] = ..., kv_role: _Optional[_Union[_types_pb2.KvRole, str]] = ..., kv_connector: _Optional[str] = ..., lora_limits: _Optional[_Union[_types_pb2.LoraLimits, _Mapping]] = ..., modalities: _Optional[_Iterable[_Union[_types_pb2.ModalityInfo, _Mapping]]] = ..., encoder_cache_size: _Optional[int] = ..., pooling: _Optional[_Union[_types_pb2.PoolingInfo, _Mapping]] = ..., num_speculative_tokens: _Optional[int] = ..., weight_version: _Optional[str] = ..., kv_cache_size_bytes: _Optional[int] = ..., num_host_blocks: _Optional[int] = ..., max_media_bytes: _Optional[int] = ..., kv_cache_tokens: _Optional[int] = ..., logits_processors: _Optional[_Iterable[str]] = ..., weights_path: _Optional[str] = ..., is_encoder_decoder: _Optional[bool] = ..., supports_transcription: _Optional[bool] = ..., logprobs_mode: _Optional[str] = ..., checked_weights_path: _Optional[str] = ...) -> None: ...

class EngineCoreOutputs(_message.Message):
    __slots__ = ("decode", "outputs", "step_id", "engine_index", "timestamp_monotonic_s", "scheduler_stats", "weight_version")
    DECODE_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    ENGINE_INDEX_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MONOTONIC_S_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_STATS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    decode: DecodeBatch
    outputs: _containers.RepeatedCompositeFieldContainer[EngineCoreOutput]
    step_id: int
    engine_index: int
    timestamp_monotonic_s: float
    scheduler_stats: SchedulerStats
    weight_version: str
    def __init__(self, decode: _Optional[_Union[DecodeBatch, _Mapping]] = ..., outputs: _Optional[_Iterable[_Union[EngineCoreOutput, _Mapping]]] = ..., step_id: _Optional[int] = ..., engine_index: _Optional[int] = ..., timestamp_monotonic_s: _Optional[float] = ..., scheduler_stats: _Optional[_Union[SchedulerStats, _Mapping]] = ..., weight_version: _Optional[str] = ...) -> None: ...

class DecodeBatch(_message.Message):
    __slots__ = ("handles", "num_tokens", "token_ids")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    handles: bytes
    num_tokens: bytes
    token_ids: bytes
    def __init__(self, handles: _Optional[bytes] = ..., num_tokens: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ...) -> None: ...

class EngineCoreOutput(_message.Message):
    __slots__ = ("handle", "new_token_ids", "finish_reason", "stop_reason", "new_logprobs", "new_prompt_logprobs", "prefill_stats", "request_id", "status", "events", "pooling_output", "kv_transfer_params", "spec_decode_metrics", "num_nans_in_logits", "trace_headers", "kv_transfer", "prompt_scores")
    class TraceHeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    NEW_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_REASON_FIELD_NUMBER: _ClassVar[int]
    NEW_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    NEW_PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_STATS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    POOLING_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    KV_TRANSFER_PARAMS_FIELD_NUMBER: _ClassVar[int]
    SPEC_DECODE_METRICS_FIELD_NUMBER: _ClassVar[int]
    NUM_NANS_IN_LOGITS_FIELD_NUMBER: _ClassVar[int]
    TRACE_HEADERS_FIELD_NUMBER: _ClassVar[int]
    KV_TRANSFER_FIELD_NUMBER: _ClassVar[int]
    PROMPT_SCORES_FIELD_NUMBER: _ClassVar[int]
    handle: int
    new_token_ids: bytes
    finish_reason: _types_pb2.FinishReason
    stop_reason: _types_pb2.StopReason
    new_logprobs: _types_pb2.LogprobsColumns
    new_prompt_logprobs: _types_pb2.LogprobsColumns
    prefill_stats: PrefillStats
    request_id: str
    status: _status_pb2.Status
    events: _containers.RepeatedCompositeFieldContainer[EngineCoreEvent]
    pooling_output: _types_pb2.Tensor
    kv_transfer_params: _struct_pb2.Struct
    spec_decode_metrics: SpecDecodeMetrics
    num_nans_in_logits: int
    trace_headers: _containers.ScalarMap[str, str]
    kv_transfer: _types_pb2.KvTransferParams
    prompt_scores: _types_pb2.PromptScores
    def __init__(self, handle: _Optional[int] = ..., new_token_ids: _Optional[bytes] = ..., finish_reason: _Optional[_Union[_types_pb2.FinishReason, str]] = ..., stop_reason: _Optional[_Union[_types_pb2.StopReason, _Mapping]] = ..., new_logprobs: _Optional[_Union[_types_pb2.LogprobsColumns, _Mapping]] = ..., new_prompt_logprobs: _Optional[_Union[_types_pb2.LogprobsColumns, _Mapping]] = ..., prefill_stats: _Optional[_Union[PrefillStats, _Mapping]] = ..., request_id: _Optional[str] = ..., status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., events: _Optional[_Iterable[_Union[EngineCoreEvent, _Mapping]]] = ..., pooling_output: _Optional[_Union[_types_pb2.Tensor, _Mapping]] = ..., kv_transfer_params: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., spec_decode_metrics: _Optional[_Union[SpecDecodeMetrics, _Mapping]] = ..., num_nans_in_logits: _Optional[int] = ..., trace_headers: _Optional[_Mapping[str, str]] = ..., kv_transfer: _Optional[_Union[_types_pb2.KvTransferParams, _Mapping]] = ..., prompt_scores: _Optional[_Union[_types_pb2.PromptScores, _Mapping]] = ...) -> None: ...

class PrefillStats(_message.Message):
    __slots__ = ("num_prompt_tokens", "num_computed_tokens", "num_cached_tokens", "num_local_cached_tokens", "num_external_cached_tokens")
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_LOCAL_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_EXTERNAL_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    num_cached_tokens: int
    num_local_cached_tokens: int
    num_external_cached_tokens: int
    def __init__(self, num_prompt_tokens: _Optional[int] = ..., num_computed_tokens: _Optional[int] = ..., num_cached_tokens: _Optional[int] = ..., num_local_cached_tokens: _Optional[int] = ..., num_external_cached_tokens: _Optional[int] = ...) -> None: ...

class EngineCoreEvent(_message.Message):
    __slots__ = ("type", "timestamp_monotonic_s")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MONOTONIC_S_FIELD_NUMBER: _ClassVar[int]
    type: EngineCoreEventType
    timestamp_monotonic_s: float
    def __init__(self, type: _Optional[_Union[EngineCoreEventType, str]] = ..., timestamp_monotonic_s: _Optional[float] = ...) -> None: ...

class SpecDecodeMetrics(_message.Message):
    __slots__ = ("num_draft_tokens", "num_accepted_tokens", "histogram", "per_step_accepted", "per_step_drafted")
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HISTOGRAM_FIELD_NUMBER: _ClassVar[int]
    PER_STEP_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    PER_STEP_DRAFTED_FIELD_NUMBER: _ClassVar[int]
    num_draft_tokens: int
    num_accepted_tokens: int
    histogram: _containers.RepeatedScalarFieldContainer[int]
    per_step_accepted: _containers.RepeatedScalarFieldContainer[int]
    per_step_drafted: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, num_draft_tokens: _Optional[int] = ..., num_accepted_tokens: _Optional[int] = ..., histogram: _Optional[_Iterable[int]] = ..., per_step_accepted: _Optional[_Iterable[int]] = ..., per_step_drafted: _Optional[_Iterable[int]] = ...) -> None: ...

class SchedulerStats(_message.Message):
    __slots__ = ("num_running_reqs", "num_waiting_reqs", "kv_cache_usage", "prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "step_counter", "num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_position", "num_waiting_for_remote_kvs_reqs", "connector_prefix_cache_queries", "connector_prefix_cache_hits", "encoder_cache_usage", "mm_cache_queries", "mm_cache_hits", "running_lora_adapters", "waiting_lora_adapters")
    NUM_RUNNING_REQS_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_REQS_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_USAGE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_QUERIES_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    STEP_COUNTER_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_TOKENS_PER_POSITION_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FOR_REMOTE_KVS_REQS_FIELD_NUMBER: _ClassVar[int]
    CONNECTOR_PREFIX_CACHE_QUERIES_FIELD_NUMBER: _ClassVar[int]
    CONNECTOR_PREFIX_CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    ENCODER_CACHE_USAGE_FIELD_NUMBER: _ClassVar[int]
    MM_CACHE_QUERIES_FIELD_NUMBER: _ClassVar[int]
    MM_CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_LORA_ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    WAITING_LORA_ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    num_running_reqs: int
    num_waiting_reqs: int
    kv_cache_usage: float
    prefix_cache_queries: int
    prefix_cache_hits: int
    num_preemptions: int
    step_counter: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_tokens_per_position: _containers.RepeatedScalarFieldContainer[int]
    num_waiting_for_remote_kvs_reqs: int
    connector_prefix_cache_queries: int
    connector_prefix_cache_hits: int
    encoder_cache_usage: float
    mm_cache_queries: int
    mm_cache_hits: int
    running_lora_adapters: _containers.RepeatedScalarFieldContainer[str]
    waiting_lora_adapters: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, num_running_reqs: _Optional[int] = ..., num_waiting_reqs: _Optional[int] = ..., kv_cache_usage: _Optional[float] = ..., prefix_cache_queries: _Optional[int] = ..., prefix_cache_hits: _Optional[int] = ..., num_preemptions: _Optional[int] = ..., step_counter: _Optional[int] = ..., num_drafts: _Optional[int] = ..., num_draft_tokens: _Optional[int] = ..., num_accepted_tokens: _Optional[int] = ..., num_accepted_tokens_per_position: _Optional[_Iterable[int]] = ..., num_waiting_for_remote_kvs_reqs: _Optional[int] = ..., connector_prefix_cache_queries: _Optional[int] = ..., connector_prefix_cache_hits: _Optional[int] = ..., encoder_cache_usage: _Optional[float] = ..., mm_cache_queries: _Optional[int] = ..., mm_cache_hits: _Optional[int] = ..., running_lora_adapters: _Optional[_Iterable[str]] = ..., waiting_lora_adapters: _Optional[_Iterable[str]] = ...) -> None: ...

class EngineCoreAdminServiceGetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EngineCoreAdminServiceGetInfoResponse(_message.Message):
    __slots__ = ("info",)
    INFO_FIELD_NUMBER: _ClassVar[int]
    info: EngineInfo
    def __init__(self, info: _Optional[_Union[EngineInfo, _Mapping]] = ...) -> None: ...

class GetLoadRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetLoadResponse(_message.Message):
    __slots__ = ("load",)
    LOAD_FIELD_NUMBER: _ClassVar[int]
    load: EngineLoad
    def __init__(self, load: _Optional[_Union[EngineLoad, _Mapping]] = ...) -> None: ...

class WatchLoadRequest(_message.Message):
    __slots__ = ("min_interval_ms",)
    MIN_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    min_interval_ms: int
    def __init__(self, min_interval_ms: _Optional[int] = ...) -> None: ...

class WatchLoadResponse(_message.Message):
    __slots__ = ("load",)
    LOAD_FIELD_NUMBER: _ClassVar[int]
    load: EngineLoad
    def __init__(self, load: _Optional[_Union[EngineLoad, _Mapping]] = ...) -> None: ...

class EngineLoad(_message.Message):
    __slots__ = ("stats", "num_gpu_blocks", "num_free_blocks", "num_sessions", "num_waiting_tokens", "num_output_messages", "paused", "sleeping", "problem", "workers", "kv_cache")
    STATS_FIELD_NUMBER: _ClassVar[int]
    NUM_GPU_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    SLEEPING_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_FIELD_NUMBER: _ClassVar[int]
    stats: SchedulerStats
    num_gpu_blocks: int
    num_free_blocks: int
    num_sessions: int
    num_waiting_tokens: int
    num_output_messages: int
    paused: bool
    sleeping: bool
    problem: str
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    kv_cache: KvCacheLoad
    def __init__(self, stats: _Optional[_Union[SchedulerStats, _Mapping]] = ..., num_gpu_blocks: _Optional[int] = ..., num_free_blocks: _Optional[int] = ..., num_sessions: _Optional[int] = ..., num_waiting_tokens: _Optional[int] = ..., num_output_messages: _Optional[int] = ..., paused: _Optional[bool] = ..., sleeping: _Optional[bool] = ..., problem: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., kv_cache: _Optional[_Union[KvCacheLoad, _Mapping]] = ...) -> None: ...

class KvCacheLoad(_message.Message):
    __slots__ = ("block_size", "num_free_cached_blocks", "num_blocks_cached", "num_blocks_evicted", "num_blocks_passed", "num_host_blocks", "num_used_host_blocks", "num_blocks_swapped_out", "num_blocks_swapped_in", "num_host_hits", "groups")
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_CACHED_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_EVICTED_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_PASSED_FIELD_NUMBER: _ClassVar[int]
    NUM_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_USED_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_SWAPPED_OUT_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_SWAPPED_IN_FIELD_NUMBER: _ClassVar[int]
    NUM_HOST_HITS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
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
    groups: _containers.RepeatedCompositeFieldContainer[KvGroupInfo]
    def __init__(self, block_size: _Optional[int] = ..., num_free_cached_blocks: _Optional[int] = ..., num_blocks_cached: _Optional[int] = ..., num_blocks_evicted: _Optional[int] = ..., num_blocks_passed: _Optional[int] = ..., num_host_blocks: _Optional[int] = ..., num_used_host_blocks: _Optional[int] = ..., num_blocks_swapped_out: _Optional[int] = ..., num_blocks_swapped_in: _Optional[int] = ..., num_host_hits: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[KvGroupInfo, _Mapping]]] = ...) -> None: ...

class KvGroupInfo(_message.Message):
    __slots__ = ("sliding_window", "is_state")
    SLIDING_WINDOW_FIELD_NUMBER: _ClassVar[int]
    IS_STATE_FIELD_NUMBER: _ClassVar[int]
    sliding_window: int
    is_state: bool
    def __init__(self, sliding_window: _Optional[int] = ..., is_state: _Optional[bool] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("rank", "version", "device", "connected_s")
    RANK_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_S_FIELD_NUMBER: _ClassVar[int]
    rank: int
    version: str
    device: str
    connected_s: float
    def __init__(self, rank: _Optional[int] = ..., version: _Optional[str] = ..., device: _Optional[str] = ..., connected_s: _Optional[float] = ...) -> None: ...

class ResetPrefixCacheRequest(_message.Message):
    __slots__ = ("reset_running_requests",)
    RESET_RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    reset_running_requests: bool
    def __init__(self, reset_running_requests: _Optional[bool] = ...) -> None: ...

class ResetPrefixCacheResponse(_message.Message):
    __slots__ = ("success",)
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    success: bool
    def __init__(self, success: _Optional[bool] = ...) -> None: ...

class ResetEncoderCacheRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResetEncoderCacheResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PauseRequest(_message.Message):
    __slots__ = ("mode", "clear_cache")
    MODE_FIELD_NUMBER: _ClassVar[int]
    CLEAR_CACHE_FIELD_NUMBER: _ClassVar[int]
    mode: PauseMode
    clear_cache: bool
    def __init__(self, mode: _Optional[_Union[PauseMode, str]] = ..., clear_cache: _Optional[bool] = ...) -> None: ...

class PauseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EngineCoreAdminServiceSleepRequest(_message.Message):
    __slots__ = ("level", "mode")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    level: int
    mode: PauseMode
    def __init__(self, level: _Optional[int] = ..., mode: _Optional[_Union[PauseMode, str]] = ...) -> None: ...

class EngineCoreAdminServiceSleepResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EngineCoreAdminServiceWakeUpRequest(_message.Message):
    __slots__ = ("tags",)
    TAGS_FIELD_NUMBER: _ClassVar[int]
    tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tags: _Optional[_Iterable[str]] = ...) -> None: ...

class EngineCoreAdminServiceWakeUpResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class IsSleepingRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class IsSleepingResponse(_message.Message):
    __slots__ = ("is_sleeping",)
    IS_SLEEPING_FIELD_NUMBER: _ClassVar[int]
    is_sleeping: bool
    def __init__(self, is_sleeping: _Optional[bool] = ...) -> None: ...

class EngineCoreAdminServiceLoadLoraRequest(_message.Message):
    __slots__ = ("lora",)
    LORA_FIELD_NUMBER: _ClassVar[int]
    lora: _types_pb2.LoraRequest
    def __init__(self, lora: _Optional[_Union[_types_pb2.LoraRequest, _Mapping]] = ...) -> None: ...

class EngineCoreAdminServiceLoadLoraResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EngineCoreAdminServiceUnloadLoraRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class EngineCoreAdminServiceUnloadLoraResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EngineCoreAdminServicePinLoraRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class EngineCoreAdminServicePinLoraResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InitWeightTransferRequest(_message.Message):
    __slots__ = ("init_info_json",)
    INIT_INFO_JSON_FIELD_NUMBER: _ClassVar[int]
    init_info_json: str
    def __init__(self, init_info_json: _Optional[str] = ...) -> None: ...

class InitWeightTransferResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StartWeightUpdateRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StartWeightUpdateResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UpdateWeightsRequest(_message.Message):
    __slots__ = ("update_info_json",)
    UPDATE_INFO_JSON_FIELD_NUMBER: _ClassVar[int]
    update_info_json: str
    def __init__(self, update_info_json: _Optional[str] = ...) -> None: ...

class UpdateWeightsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FinishWeightUpdateRequest(_message.Message):
    __slots__ = ("weight_version", "mode")
    WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    weight_version: str
    mode: PauseMode
    def __init__(self, weight_version: _Optional[str] = ..., mode: _Optional[_Union[PauseMode, str]] = ...) -> None: ...

class FinishWeightUpdateResponse(_message.Message):
    __slots__ = ("weight_version",)
    WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    weight_version: str
    def __init__(self, weight_version: _Optional[str] = ...) -> None: ...

class UpdateWeightVersionRequest(_message.Message):
    __slots__ = ("weight_version",)
    WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    weight_version: str
    def __init__(self, weight_version: _Optional[str] = ...) -> None: ...

class UpdateWeightVersionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListLorasRequest(_message.Message):
    __slots__ = ("after_id",)
    AFTER_ID_FIELD_NUMBER: _ClassVar[int]
    after_id: int
    def __init__(self, after_id: _Optional[int] = ...) -> None: ...

class ListLorasResponse(_message.Message):
    __slots__ = ("loras", "has_more")
    LORAS_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    loras: _containers.RepeatedCompositeFieldContainer[_types_pb2.LoraRequest]
    has_more: bool
    def __init__(self, loras: _Optional[_Iterable[_Union[_types_pb2.LoraRequest, _Mapping]]] = ..., has_more: _Optional[bool] = ...) -> None: ...

class EngineCoreAdminServiceStartProfileRequest(_message.Message):
    __slots__ = ("prefix", "delay_iterations", "max_iterations")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    DELAY_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    delay_iterations: int
    max_iterations: int
    def __init__(self, prefix: _Optional[str] = ..., delay_iterations: _Optional[int] = ..., max_iterations: _Optional[int] = ...) -> None: ...

class EngineCoreAdminServiceStartProfileResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EngineCoreAdminServiceStopProfileRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EngineCoreAdminServiceStopProfileResponse(_message.Message):
    __slots__ = ("paths",)
    PATHS_FIELD_NUMBER: _ClassVar[int]
    paths: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, paths: _Optional[_Iterable[str]] = ...) -> None: ...

class EngineCoreAdminServiceCollectiveRpcRequest(_message.Message):
    __slots__ = ("method", "args_json", "kwargs_json", "timeout_s")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    ARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    KWARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    method: str
    args_json: str
    kwargs_json: str
    timeout_s: float
    def __init__(self, method: _Optional[str] = ..., args_json: _Optional[str] = ..., kwargs_json: _Optional[str] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class EngineCoreAdminServiceCollectiveRpcResponse(_message.Message):
    __slots__ = ("results_json",)
    RESULTS_JSON_FIELD_NUMBER: _ClassVar[int]
    results_json: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, results_json: _Optional[_Iterable[str]] = ...) -> None: ...

class SubscribeKvEventsRequest(_message.Message):
    __slots__ = ("start_sequence_number",)
    START_SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    start_sequence_number: int
    def __init__(self, start_sequence_number: _Optional[int] = ...) -> None: ...

class SubscribeKvEventsResponse(_message.Message):
    __slots__ = ("sequence_number", "events", "snapshot", "timestamp_unix_s")
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    sequence_number: int
    events: _containers.RepeatedCompositeFieldContainer[KvCacheEvent]
    snapshot: bool
    timestamp_unix_s: float
    def __init__(self, sequence_number: _Optional[int] = ..., events: _Optional[_Iterable[_Union[KvCacheEvent, _Mapping]]] = ..., snapshot: _Optional[bool] = ..., timestamp_unix_s: _Optional[float] = ...) -> None: ...

class KvCacheEvent(_message.Message):
    __slots__ = ("stored", "removed", "cleared")
    STORED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    stored: KvBlocksStored
    removed: KvBlocksRemoved
    cleared: KvBlocksCleared
    def __init__(self, stored: _Optional[_Union[KvBlocksStored, _Mapping]] = ..., removed: _Optional[_Union[KvBlocksRemoved, _Mapping]] = ..., cleared: _Optional[_Union[KvBlocksCleared, _Mapping]] = ...) -> None: ...

class KvBlocksStored(_message.Message):
    __slots__ = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_name", "medium", "group_index", "cache_salt", "kind", "sliding_window", "extra_keys")
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    PARENT_BLOCK_HASH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    LORA_NAME_FIELD_NUMBER: _ClassVar[int]
    MEDIUM_FIELD_NUMBER: _ClassVar[int]
    GROUP_INDEX_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SLIDING_WINDOW_FIELD_NUMBER: _ClassVar[int]
    EXTRA_KEYS_FIELD_NUMBER: _ClassVar[int]
    block_hashes: _containers.RepeatedScalarFieldContainer[bytes]
    parent_block_hash: bytes
    token_ids: bytes
    block_size: int
    lora_name: str
    medium: str
    group_index: int
    cache_salt: str
    kind: _types_pb2.KvCacheKind
    sliding_window: int
    extra_keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, block_hashes: _Optional[_Iterable[bytes]] = ..., parent_block_hash: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., block_size: _Optional[int] = ..., lora_name: _Optional[str] = ..., medium: _Optional[str] = ..., group_index: _Optional[int] = ..., cache_salt: _Optional[str] = ..., kind: _Optional[_Union[_types_pb2.KvCacheKind, str]] = ..., sliding_window: _Optional[int] = ..., extra_keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class KvBlocksRemoved(_message.Message):
    __slots__ = ("block_hashes", "medium", "group_index")
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    MEDIUM_FIELD_NUMBER: _ClassVar[int]
    GROUP_INDEX_FIELD_NUMBER: _ClassVar[int]
    block_hashes: _containers.RepeatedScalarFieldContainer[bytes]
    medium: str
    group_index: int
    def __init__(self, block_hashes: _Optional[_Iterable[bytes]] = ..., medium: _Optional[str] = ..., group_index: _Optional[int] = ...) -> None: ...

class KvBlocksCleared(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
