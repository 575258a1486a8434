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

class ReadBlocksRequest(_message.Message):
    __slots__ = ("lease_id", "compatibility_hash", "first_block", "num_blocks", "last_block_hash")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_HASH_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LAST_BLOCK_HASH_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    compatibility_hash: bytes
    first_block: int
    num_blocks: int
    last_block_hash: bytes
    def __init__(self, lease_id: _Optional[int] = ..., compatibility_hash: _Optional[bytes] = ..., first_block: _Optional[int] = ..., num_blocks: _Optional[int] = ..., last_block_hash: _Optional[bytes] = ...) -> None: ...

class ReadBlocksResponse(_message.Message):
    __slots__ = ("content",)
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    def __init__(self, content: _Optional[bytes] = ...) -> None: ...

class ExecuteRequest(_message.Message):
    __slots__ = ("step", "hello", "encoder_inputs")
    STEP_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ENCODER_INPUTS_FIELD_NUMBER: _ClassVar[int]
    step: SchedulerOutput
    hello: ExecuteHello
    encoder_inputs: EncoderInputs
    def __init__(self, step: _Optional[_Union[SchedulerOutput, _Mapping]] = ..., hello: _Optional[_Union[ExecuteHello, _Mapping]] = ..., encoder_inputs: _Optional[_Union[EncoderInputs, _Mapping]] = ...) -> None: ...

class ExecuteHello(_message.Message):
    __slots__ = ("schema_revision", "epoch", "contract_revision", "capabilities")
    SCHEMA_REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_REVISION_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    schema_revision: int
    epoch: int
    contract_revision: int
    capabilities: _containers.RepeatedScalarFieldContainer[_types_pb2.Capability]
    def __init__(self, schema_revision: _Optional[int] = ..., epoch: _Optional[int] = ..., contract_revision: _Optional[int] = ..., capabilities: _Optional[_Iterable[_Union[_types_pb2.Capability, str]]] = ...) -> None: ...

class ExecuteResponse(_message.Message):
    __slots__ = ("output", "ready", "kv_events", "encoder_events")
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    KV_EVENTS_FIELD_NUMBER: _ClassVar[int]
    ENCODER_EVENTS_FIELD_NUMBER: _ClassVar[int]
    output: ModelRunnerOutput
    ready: ExecuteReady
    kv_events: KvTransferEvents
    encoder_events: EncoderEvents
    def __init__(self, output: _Optional[_Union[ModelRunnerOutput, _Mapping]] = ..., ready: _Optional[_Union[ExecuteReady, _Mapping]] = ..., kv_events: _Optional[_Union[KvTransferEvents, _Mapping]] = ..., encoder_events: _Optional[_Union[EncoderEvents, _Mapping]] = ...) -> None: ...

class ExecuteReady(_message.Message):
    __slots__ = ("schema_revision", "rank", "instance_id", "supports_shared_sampling_params", "contract_revision", "capabilities")
    SCHEMA_REVISION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    SUPPORTS_SHARED_SAMPLING_PARAMS_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_REVISION_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    schema_revision: int
    rank: int
    instance_id: str
    supports_shared_sampling_params: bool
    contract_revision: int
    capabilities: _containers.RepeatedScalarFieldContainer[_types_pb2.Capability]
    def __init__(self, schema_revision: _Optional[int] = ..., rank: _Optional[int] = ..., instance_id: _Optional[str] = ..., supports_shared_sampling_params: _Optional[bool] = ..., contract_revision: _Optional[int] = ..., capabilities: _Optional[_Iterable[_Union[_types_pb2.Capability, str]]] = ...) -> None: ...

class SchedulerOutput(_message.Message):
    __slots__ = ("step_id", "new_requests", "cached_requests", "removed_handles", "total_num_scheduled_tokens", "grammar_bitmask", "draft_tokens", "block_copies", "block_ids_to_zero", "freed_encoder_hashes", "kv_connector_metadata", "swap_out", "swap_in", "shared_sampling_params", "kv_transfers", "encoder_inputs", "num_spec_tokens")
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
    KV_TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    ENCODER_INPUTS_FIELD_NUMBER: _ClassVar[int]
    NUM_SPEC_TOKENS_FIELD_NUMBER: _ClassVar[int]
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
    kv_transfers: KvTransferPlan
    encoder_inputs: EncoderInputs
    num_spec_tokens: int
    def __init__(self, step_id: _Optional[int] = ..., new_requests: _Optional[_Iterable[_Union[NewRequestData, _Mapping]]] = ..., cached_requests: _Optional[_Union[CachedRequestData, _Mapping]] = ..., removed_handles: _Optional[bytes] = ..., total_num_scheduled_tokens: _Optional[int] = ..., grammar_bitmask: _Optional[_Union[GrammarBitmask, _Mapping]] = ..., draft_tokens: _Optional[_Union[DraftTokens, _Mapping]] = ..., block_copies: _Optional[_Union[BlockCopies, _Mapping]] = ..., block_ids_to_zero: _Optional[bytes] = ..., freed_encoder_hashes: _Optional[_Iterable[str]] = ..., kv_connector_metadata: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., swap_out: _Optional[_Union[BlockCopies, _Mapping]] = ..., swap_in: _Optional[_Union[BlockCopies, _Mapping]] = ..., shared_sampling_params: _Optional[_Iterable[_Union[_types_pb2.SamplingParams, _Mapping]]] = ..., kv_transfers: _Optional[_Union[KvTransferPlan, _Mapping]] = ..., encoder_inputs: _Optional[_Union[EncoderInputs, _Mapping]] = ..., num_spec_tokens: _Optional[int] = ...) -> None: ...

class EncoderInputs(_message.Message):
    __slots__ = ("handles", "num_inputs", "input_indices", "items")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    NUM_INPUTS_FIELD_NUMBER: _ClassVar[int]
    INPUT_INDICES_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    handles: bytes
    num_inputs: bytes
    input_indices: bytes
    items: _containers.RepeatedCompositeFieldContainer[EncoderItem]
    def __init__(self, handles: _Optional[bytes] = ..., num_inputs: _Optional[bytes] = ..., input_indices: _Optional[bytes] = ..., items: _Optional[_Iterable[_Union[EncoderItem, _Mapping]]] = ...) -> None: ...

class EncoderItem(_message.Message):
    __slots__ = ("identifier", "modality", "tensors", "num_embeds")
    class TensorsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _types_pb2.Tensor
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_types_pb2.Tensor, _Mapping]] = ...) -> None: ...
    IDENTIFIER_FIELD_NUMBER: _ClassVar[int]
    MODALITY_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    NUM_EMBEDS_FIELD_NUMBER: _ClassVar[int]
    identifier: str
    modality: str
    tensors: _containers.MessageMap[str, _types_pb2.Tensor]
    num_embeds: int
    def __init__(self, identifier: _Optional[str] = ..., modality: _Optional[str] = ..., tensors: _Optional[_Mapping[str, _types_pb2.Tensor]] = ..., num_embeds: _Optional[int] = ...) -> None: ...

class EncoderEvents(_message.Message):
    __slots__ = ("encoded", "failures")
    ENCODED_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    encoded: _containers.RepeatedScalarFieldContainer[str]
    failures: _containers.RepeatedCompositeFieldContainer[EncoderFailure]
    def __init__(self, encoded: _Optional[_Iterable[str]] = ..., failures: _Optional[_Iterable[_Union[EncoderFailure, _Mapping]]] = ...) -> None: ...

class EncoderFailure(_message.Message):
    __slots__ = ("identifier", "error")
    IDENTIFIER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    identifier: str
    error: _status_pb2.Status
    def __init__(self, identifier: _Optional[str] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class KvTransferPlan(_message.Message):
    __slots__ = ("receives", "leases", "cancelled_transfer_ids")
    RECEIVES_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_TRANSFER_IDS_FIELD_NUMBER: _ClassVar[int]
    receives: _containers.RepeatedCompositeFieldContainer[KvReceive]
    leases: _containers.RepeatedCompositeFieldContainer[KvLease]
    cancelled_transfer_ids: bytes
    def __init__(self, receives: _Optional[_Iterable[_Union[KvReceive, _Mapping]]] = ..., leases: _Optional[_Iterable[_Union[KvLease, _Mapping]]] = ..., cancelled_transfer_ids: _Optional[bytes] = ...) -> None: ...

class KvReceive(_message.Message):
    __slots__ = ("transfer_id", "local_block_ids", "source", "timeout_s", "first_block", "last_block_hash")
    TRANSFER_ID_FIELD_NUMBER: _ClassVar[int]
    LOCAL_BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    LAST_BLOCK_HASH_FIELD_NUMBER: _ClassVar[int]
    transfer_id: int
    local_block_ids: _containers.RepeatedScalarFieldContainer[bytes]
    source: _types_pb2.KvTransferParams
    timeout_s: float
    first_block: int
    last_block_hash: bytes
    def __init__(self, transfer_id: _Optional[int] = ..., local_block_ids: _Optional[_Iterable[bytes]] = ..., source: _Optional[_Union[_types_pb2.KvTransferParams, _Mapping]] = ..., timeout_s: _Optional[float] = ..., first_block: _Optional[int] = ..., last_block_hash: _Optional[bytes] = ...) -> None: ...

class KvLease(_message.Message):
    __slots__ = ("transfer_id", "lease_id", "request_id", "block_ids", "ttl_s", "block_hashes")
    TRANSFER_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    transfer_id: int
    lease_id: int
    request_id: str
    block_ids: _containers.RepeatedScalarFieldContainer[bytes]
    ttl_s: float
    block_hashes: bytes
    def __init__(self, transfer_id: _Optional[int] = ..., lease_id: _Optional[int] = ..., request_id: _Optional[str] = ..., block_ids: _Optional[_Iterable[bytes]] = ..., ttl_s: _Optional[float] = ..., block_hashes: _Optional[bytes] = ...) -> None: ...

class KvTransferEvents(_message.Message):
    __slots__ = ("sent", "received", "failed", "expired", "invalid_block_ids", "bytes_moved", "seconds")
    SENT_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    INVALID_BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_MOVED_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    sent: bytes
    received: bytes
    failed: bytes
    expired: bytes
    invalid_block_ids: bytes
    bytes_moved: int
    seconds: float
    def __init__(self, sent: _Optional[bytes] = ..., received: _Optional[bytes] = ..., failed: _Optional[bytes] = ..., expired: _Optional[bytes] = ..., invalid_block_ids: _Optional[bytes] = ..., bytes_moved: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class NewRequestData(_message.Message):
    __slots__ = ("handle", "token_ids", "num_prompt_tokens", "num_computed_tokens", "num_scheduled_tokens", "block_ids", "sampling_params", "pooling_params", "request_id", "eos_token_id", "lora_request", "mm_features", "prompt_embeds", "trace_headers", "sampling_params_index", "seed", "num_encoder_tokens", "prompt_is_token_ids")
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
    NUM_ENCODER_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
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
    num_encoder_tokens: int
    prompt_is_token_ids: bytes
    def __init__(self, handle: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., num_prompt_tokens: _Optional[int] = ..., num_computed_tokens: _Optional[int] = ..., num_scheduled_tokens: _Optional[int] = ..., block_ids: _Optional[_Iterable[bytes]] = ..., sampling_params: _Optional[_Union[_types_pb2.SamplingParams, _Mapping]] = ..., pooling_params: _Optional[_Union[_types_pb2.PoolingParams, _Mapping]] = ..., request_id: _Optional[str] = ..., eos_token_id: _Optional[int] = ..., lora_request: _Optional[_Union[_types_pb2.LoraRequest, _Mapping]] = ..., mm_features: _Optional[_Iterable[_Union[_types_pb2.MultiModalFeature, _Mapping]]] = ..., prompt_embeds: _Optional[_Union[_types_pb2.Tensor, _Mapping]] = ..., trace_headers: _Optional[_Mapping[str, str]] = ..., sampling_params_index: _Optional[int] = ..., seed: _Optional[int] = ..., num_encoder_tokens: _Optional[int] = ..., prompt_is_token_ids: _Optional[bytes] = ...) -> None: ...

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
    __slots__ = ("step_id", "handles", "num_tokens", "token_ids", "logprobs_by_width", "prompt_logprobs", "prompt_scores", "pooling_outputs", "draft_tokens", "failures", "compute_seconds", "draft_seconds", "kv_events")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_BY_WIDTH_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_SCORES_FIELD_NUMBER: _ClassVar[int]
    POOLING_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    KV_EVENTS_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    handles: bytes
    num_tokens: bytes
    token_ids: bytes
    logprobs_by_width: _containers.RepeatedCompositeFieldContainer[SampleLogprobs]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[PromptLogprobs]
    prompt_scores: _containers.RepeatedCompositeFieldContainer[RequestPromptScores]
    pooling_outputs: _containers.RepeatedCompositeFieldContainer[PoolingOutput]
    draft_tokens: DraftTokens
    failures: _containers.RepeatedCompositeFieldContainer[RequestFailure]
    compute_seconds: float
    draft_seconds: float
    kv_events: KvTransferEvents
    def __init__(self, step_id: _Optional[int] = ..., handles: _Optional[bytes] = ..., num_tokens: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., logprobs_by_width: _Optional[_Iterable[_Union[SampleLogprobs, _Mapping]]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[PromptLogprobs, _Mapping]]] = ..., prompt_scores: _Optional[_Iterable[_Union[RequestPromptScores, _Mapping]]] = ..., pooling_outputs: _Optional[_Iterable[_Union[PoolingOutput, _Mapping]]] = ..., draft_tokens: _Optional[_Union[DraftTokens, _Mapping]] = ..., failures: _Optional[_Iterable[_Union[RequestFailure, _Mapping]]] = ..., compute_seconds: _Optional[float] = ..., draft_seconds: _Optional[float] = ..., kv_events: _Optional[_Union[KvTransferEvents, _Mapping]] = ...) -> None: ...

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

class RequestPromptScores(_message.Message):
    __slots__ = ("handle", "scores")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    handle: int
    scores: _types_pb2.PromptScores
    def __init__(self, handle: _Optional[int] = ..., scores: _Optional[_Union[_types_pb2.PromptScores, _Mapping]] = ...) -> None: ...

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

class WorkerGroup(_message.Message):
    __slots__ = ("tensor_parallel_size", "pipeline_parallel_size", "group_epoch", "addresses", "backend")
    TENSOR_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    GROUP_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    tensor_parallel_size: int
    pipeline_parallel_size: int
    group_epoch: int
    addresses: _containers.RepeatedScalarFieldContainer[str]
    backend: str
    def __init__(self, tensor_parallel_size: _Optional[int] = ..., pipeline_parallel_size: _Optional[int] = ..., group_epoch: _Optional[int] = ..., addresses: _Optional[_Iterable[str]] = ..., backend: _Optional[str] = ...) -> None: ...

class JoinGroupRequest(_message.Message):
    __slots__ = ("rank", "group", "timeout_s")
    RANK_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    rank: int
    group: WorkerGroup
    timeout_s: float
    def __init__(self, rank: _Optional[int] = ..., group: _Optional[_Union[WorkerGroup, _Mapping]] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class JoinGroupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetKvTransferEndpointRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetKvTransferEndpointResponse(_message.Message):
    __slots__ = ("engine_id", "compatibility_hash", "agent", "regions", "num_blocks", "block_size", "now_monotonic_s")
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_HASH_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NOW_MONOTONIC_S_FIELD_NUMBER: _ClassVar[int]
    engine_id: str
    compatibility_hash: bytes
    agent: _types_pb2.RemoteRef
    regions: _containers.RepeatedCompositeFieldContainer[KvRegion]
    num_blocks: int
    block_size: int
    now_monotonic_s: float
    def __init__(self, engine_id: _Optional[str] = ..., compatibility_hash: _Optional[bytes] = ..., agent: _Optional[_Union[_types_pb2.RemoteRef, _Mapping]] = ..., regions: _Optional[_Iterable[_Union[KvRegion, _Mapping]]] = ..., num_blocks: _Optional[int] = ..., block_size: _Optional[int] = ..., now_monotonic_s: _Optional[float] = ...) -> None: ...

class KvRegion(_message.Message):
    __slots__ = ("layer", "base_address", "block_len_bytes", "block_stride_bytes", "group_index")
    LAYER_FIELD_NUMBER: _ClassVar[int]
    BASE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_LEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_STRIDE_BYTES_FIELD_NUMBER: _ClassVar[int]
    GROUP_INDEX_FIELD_NUMBER: _ClassVar[int]
    layer: str
    base_address: int
    block_len_bytes: int
    block_stride_bytes: int
    group_index: int
    def __init__(self, layer: _Optional[str] = ..., base_address: _Optional[int] = ..., block_len_bytes: _Optional[int] = ..., block_stride_bytes: _Optional[int] = ..., group_index: _Optional[int] = ...) -> None: ...

class WorkerLifecycleServiceGetInfoResponse(_message.Message):
    __slots__ = ("state", "device", "rank", "version", "schema_revision", "model", "num_blocks", "block_size", "num_requests", "instance_id", "epoch", "engine_pause", "max_message_bytes", "contract_revision", "capabilities", "group", "lora_limits", "logits_processors")
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
    CONTRACT_REVISION_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LORA_LIMITS_FIELD_NUMBER: _ClassVar[int]
    LOGITS_PROCESSORS_FIELD_NUMBER: _ClassVar[int]
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
    contract_revision: int
    capabilities: _containers.RepeatedScalarFieldContainer[_types_pb2.Capability]
    group: WorkerGroup
    lora_limits: _types_pb2.LoraLimits
    logits_processors: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, state: _Optional[_Union[WorkerState, str]] = ..., device: _Optional[str] = ..., rank: _Optional[int] = ..., version: _Optional[str] = ..., schema_revision: _Optional[int] = ..., model: _Optional[_Union[ModelInfo, _Mapping]] = ..., num_blocks: _Optional[int] = ..., block_size: _Optional[int] = ..., num_requests: _Optional[int] = ..., instance_id: _Optional[str] = ..., epoch: _Optional[int] = ..., engine_pause: _Optional[_Union[EnginePause, _Mapping]] = ..., max_message_bytes: _Optional[int] = ..., contract_revision: _Optional[int] = ..., capabilities: _Optional[_Iterable[_Union[_types_pb2.Capability, str]]] = ..., group: _Optional[_Union[WorkerGroup, _Mapping]] = ..., lora_limits: _Optional[_Union[_types_pb2.LoraLimits, _Mapping]] = ..., logits_processors: _Optional[_Iterable[str]] = ...) -> None: ...

class EnginePause(_message.Message):
    __slots__ = ("paused", "finish_running")
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    FINISH_RUNNING_FIELD_NUMBER: _ClassVar[int]
    paused: bool
    finish_running: bool
    def __init__(self, paused: _Optional[bool] = ..., finish_running: _Optional[bool] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("model", "architecture", "vocab_size", "max_position_embeddings", "dtype", "num_parameters", "weights_size_bytes", "num_layers", "hidden_size", "weights_dtype", "modalities", "is_encoder_decoder", "uses_mrope", "supports_transcription", "pooling", "first_layer", "num_stage_layers", "weight_version", "weights", "encoded_position_bytes")
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
    MODALITIES_FIELD_NUMBER: _ClassVar[int]
    IS_ENCODER_DECODER_FIELD_NUMBER: _ClassVar[int]
    USES_MROPE_FIELD_NUMBER: _ClassVar[int]
    SUPPORTS_TRANSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    FIRST_LAYER_FIELD_NUMBER: _ClassVar[int]
    NUM_STAGE_LAYERS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    ENCODED_POSITION_BYTES_FIELD_NUMBER: _ClassVar[int]
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
    modalities: _containers.RepeatedCompositeFieldContainer[_types_pb2.ModalityInfo]
    is_encoder_decoder: bool
    uses_mrope: bool
    supports_transcription: bool
    pooling: _types_pb2.PoolingInfo
    first_layer: int
    num_stage_layers: int
    weight_version: str
    weights: WeightSource
    encoded_position_bytes: int
    def __init__(self, model: _Optional[str] = ..., architecture: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_position_embeddings: _Optional[int] = ..., dtype: _Optional[str] = ..., num_parameters: _Optional[int] = ..., weights_size_bytes: _Optional[int] = ..., num_layers: _Optional[int] = ..., hidden_size: _Optional[int] = ..., weights_dtype: _Optional[str] = ..., modalities: _Optional[_Iterable[_Union[_types_pb2.ModalityInfo, _Mapping]]] = ..., is_encoder_decoder: _Optional[bool] = ..., uses_mrope: _Optional[bool] = ..., supports_transcription: _Optional[bool] = ..., pooling: _Optional[_Union[_types_pb2.PoolingInfo, _Mapping]] = ..., first_layer: _Optional[int] = ..., num_stage_layers: _Optional[int] = ..., weight_version: _Optional[str] = ..., weights: _Optional[_Union[WeightSource, _Mapping]] = ..., encoded_position_bytes: _Optional[int] = ...) -> None: ...

class WeightSource(_message.Message):
    __slots__ = ("path", "update_id", "files_digest", "version")
    PATH_FIELD_NUMBER: _ClassVar[int]
    UPDATE_ID_FIELD_NUMBER: _ClassVar[int]
    FILES_DIGEST_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    path: str
    update_id: str
    files_digest: str
    version: str
    def __init__(self, path: _Optional[str] = ..., update_id: _Optional[str] = ..., files_digest: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class LoadModelRequest(_message.Message):
    __slots__ = ("model", "dtype", "quantization", "hf_overrides_json", "random_weights", "seed", "revision", "load_format", "config_format", "runner", "convert", "pooler_config_json", "lora_limits", "speculative", "kv_connector", "enable_expert_parallel", "weights", "logprobs_mode")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    HF_OVERRIDES_JSON_FIELD_NUMBER: _ClassVar[int]
    RANDOM_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    LOAD_FORMAT_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FORMAT_FIELD_NUMBER: _ClassVar[int]
    RUNNER_FIELD_NUMBER: _ClassVar[int]
    CONVERT_FIELD_NUMBER: _ClassVar[int]
    POOLER_CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    LORA_LIMITS_FIELD_NUMBER: _ClassVar[int]
    SPECULATIVE_FIELD_NUMBER: _ClassVar[int]
    KV_CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    ENABLE_EXPERT_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_MODE_FIELD_NUMBER: _ClassVar[int]
    model: str
    dtype: str
    quantization: str
    hf_overrides_json: str
    random_weights: bool
    seed: int
    revision: str
    load_format: str
    config_format: str
    runner: str
    convert: str
    pooler_config_json: str
    lora_limits: _types_pb2.LoraLimits
    speculative: SpeculativeConfig
    kv_connector: KvConnectorConfig
    enable_expert_parallel: bool
    weights: WeightSource
    logprobs_mode: str
    def __init__(self, model: _Optional[str] = ..., dtype: _Optional[str] = ..., quantization: _Optional[str] = ..., hf_overrides_json: _Optional[str] = ..., random_weights: _Optional[bool] = ..., seed: _Optional[int] = ..., revision: _Optional[str] = ..., load_format: _Optional[str] = ..., config_format: _Optional[str] = ..., runner: _Optional[str] = ..., convert: _Optional[str] = ..., pooler_config_json: _Optional[str] = ..., lora_limits: _Optional[_Union[_types_pb2.LoraLimits, _Mapping]] = ..., speculative: _Optional[_Union[SpeculativeConfig, _Mapping]] = ..., kv_connector: _Optional[_Union[KvConnectorConfig, _Mapping]] = ..., enable_expert_parallel: _Optional[bool] = ..., weights: _Optional[_Union[WeightSource, _Mapping]] = ..., logprobs_mode: _Optional[str] = ...) -> None: ...

class SpeculativeConfig(_message.Message):
    __slots__ = ("method", "num_speculative_tokens", "model")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    NUM_SPECULATIVE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    method: str
    num_speculative_tokens: int
    model: str
    def __init__(self, method: _Optional[str] = ..., num_speculative_tokens: _Optional[int] = ..., model: _Optional[str] = ...) -> None: ...

class KvConnectorConfig(_message.Message):
    __slots__ = ("connector", "role", "engine_id", "extra_json")
    CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    EXTRA_JSON_FIELD_NUMBER: _ClassVar[int]
    connector: str
    role: _types_pb2.KvRole
    engine_id: str
    extra_json: str
    def __init__(self, connector: _Optional[str] = ..., role: _Optional[_Union[_types_pb2.KvRole, str]] = ..., engine_id: _Optional[str] = ..., extra_json: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("layers", "block_size_bytes", "num_kv_heads", "head_size", "dtype", "sliding_window", "kind", "block_size", "attention_chunk_size", "head_size_v", "sharing_layers", "num_state_blocks")
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_SIZE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SLIDING_WINDOW_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_CHUNK_SIZE_FIELD_NUMBER: _ClassVar[int]
    HEAD_SIZE_V_FIELD_NUMBER: _ClassVar[int]
    SHARING_LAYERS_FIELD_NUMBER: _ClassVar[int]
    NUM_STATE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    layers: _containers.RepeatedScalarFieldContainer[int]
    block_size_bytes: int
    num_kv_heads: int
    head_size: int
    dtype: str
    sliding_window: int
    kind: _types_pb2.KvCacheKind
    block_size: int
    attention_chunk_size: int
    head_size_v: int
    sharing_layers: _containers.RepeatedScalarFieldContainer[int]
    num_state_blocks: int
    def __init__(self, layers: _Optional[_Iterable[int]] = ..., block_size_bytes: _Optional[int] = ..., num_kv_heads: _Optional[int] = ..., head_size: _Optional[int] = ..., dtype: _Optional[str] = ..., sliding_window: _Optional[int] = ..., kind: _Optional[_Union[_types_pb2.KvCacheKind, str]] = ..., block_size: _Optional[int] = ..., attention_chunk_size: _Optional[int] = ..., head_size_v: _Optional[int] = ..., sharing_layers: _Optional[_Iterable[int]] = ..., num_state_blocks: _Optional[int] = ...) -> None: ...

class DetermineAvailableMemoryRequest(_message.Message):
    __slots__ = ("gpu_memory_utilization", "max_num_batched_tokens", "max_num_encoder_tokens")
    GPU_MEMORY_UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_ENCODER_TOKENS_FIELD_NUMBER: _ClassVar[int]
    gpu_memory_utilization: float
    max_num_batched_tokens: int
    max_num_encoder_tokens: int
    def __init__(self, gpu_memory_utilization: _Optional[float] = ..., max_num_batched_tokens: _Optional[int] = ..., max_num_encoder_tokens: _Optional[int] = ...) -> None: ...

class DetermineAvailableMemoryResponse(_message.Message):
    __slots__ = ("available_bytes",)
    AVAILABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    available_bytes: int
    def __init__(self, available_bytes: _Optional[int] = ...) -> None: ...

class InitializeKvCacheRequest(_message.Message):
    __slots__ = ("num_blocks", "block_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "num_host_blocks", "groups", "encoder_cache_size")
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    ENCODER_CACHE_SIZE_FIELD_NUMBER: _ClassVar[int]
    num_blocks: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_host_blocks: int
    groups: _containers.RepeatedCompositeFieldContainer[KvCacheGroup]
    encoder_cache_size: int
    def __init__(self, num_blocks: _Optional[int] = ..., block_size: _Optional[int] = ..., max_model_len: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., max_num_batched_tokens: _Optional[int] = ..., num_host_blocks: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[KvCacheGroup, _Mapping]]] = ..., encoder_cache_size: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("digest",)
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    def __init__(self, digest: _Optional[bytes] = ...) -> None: ...

class WorkerLifecycleServiceUnloadLoraRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class WorkerLifecycleServiceUnloadLoraResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerLifecycleServicePinLoraRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class WorkerLifecycleServicePinLoraResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerLifecycleServiceInitWeightTransferRequest(_message.Message):
    __slots__ = ("init_info_json",)
    INIT_INFO_JSON_FIELD_NUMBER: _ClassVar[int]
    init_info_json: str
    def __init__(self, init_info_json: _Optional[str] = ...) -> None: ...

class WorkerLifecycleServiceInitWeightTransferResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerLifecycleServiceStartWeightUpdateRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerLifecycleServiceStartWeightUpdateResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerLifecycleServiceUpdateWeightsRequest(_message.Message):
    __slots__ = ("update_info_json", "model")
    UPDATE_INFO_JSON_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    update_info_json: str
    model: LoadModelRequest
    def __init__(self, update_info_json: _Optional[str] = ..., model: _Optional[_Union[LoadModelRequest, _Mapping]] = ...) -> None: ...

class WorkerLifecycleServiceUpdateWeightsResponse(_message.Message):
    __slots__ = ("files_digest",)
    FILES_DIGEST_FIELD_NUMBER: _ClassVar[int]
    files_digest: str
    def __init__(self, files_digest: _Optional[str] = ...) -> None: ...

class WorkerLifecycleServiceFinishWeightUpdateRequest(_message.Message):
    __slots__ = ("weight_version",)
    WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    weight_version: str
    def __init__(self, weight_version: _Optional[str] = ...) -> None: ...

class WorkerLifecycleServiceFinishWeightUpdateResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerLifecycleServiceStartProfileRequest(_message.Message):
    __slots__ = ("prefix", "delay_iterations", "max_iterations")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    DELAY_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    delay_iterations: int
    max_iterations: int
    def __init__(self, prefix: _Optional[str] = ..., delay_iterations: _Optional[int] = ..., max_iterations: _Optional[int] = ...) -> None: ...

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
