from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Capability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CAPABILITY_UNSPECIFIED: _ClassVar[Capability]
    CAPABILITY_SHARED_SAMPLING_PARAMS: _ClassVar[Capability]
    CAPABILITY_POOLING: _ClassVar[Capability]
    CAPABILITY_LORA: _ClassVar[Capability]
    CAPABILITY_MULTIMODAL: _ClassVar[Capability]
    CAPABILITY_PROMPT_EMBEDS: _ClassVar[Capability]
    CAPABILITY_DRAFT_TOKENS: _ClassVar[Capability]
    CAPABILITY_KV_GROUPS: _ClassVar[Capability]
    CAPABILITY_KV_TRANSFER: _ClassVar[Capability]
    CAPABILITY_WORKER_GROUP: _ClassVar[Capability]
    CAPABILITY_WEIGHT_UPDATE: _ClassVar[Capability]
    CAPABILITY_DRAFTS_WITH_STATES: _ClassVar[Capability]
    CAPABILITY_LOGPROBS_MODES: _ClassVar[Capability]
    CAPABILITY_PROMPT_SCORES: _ClassVar[Capability]
    CAPABILITY_KV_TRANSFER_CANCEL: _ClassVar[Capability]
    CAPABILITY_TOKEN_TIMES: _ClassVar[Capability]

class KvCacheKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KV_CACHE_KIND_UNSPECIFIED: _ClassVar[KvCacheKind]
    KV_CACHE_KIND_FULL_ATTENTION: _ClassVar[KvCacheKind]
    KV_CACHE_KIND_SLIDING_WINDOW: _ClassVar[KvCacheKind]
    KV_CACHE_KIND_CHUNKED_LOCAL: _ClassVar[KvCacheKind]
    KV_CACHE_KIND_LATENT: _ClassVar[KvCacheKind]
    KV_CACHE_KIND_STATE: _ClassVar[KvCacheKind]
    KV_CACHE_KIND_CROSS_ATTENTION: _ClassVar[KvCacheKind]

class KvRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KV_ROLE_UNSPECIFIED: _ClassVar[KvRole]
    KV_ROLE_PRODUCER: _ClassVar[KvRole]
    KV_ROLE_CONSUMER: _ClassVar[KvRole]
    KV_ROLE_BOTH: _ClassVar[KvRole]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_ABORT: _ClassVar[FinishReason]
    FINISH_REASON_ERROR: _ClassVar[FinishReason]
    FINISH_REASON_REPETITION: _ClassVar[FinishReason]

class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DATA_TYPE_UNSPECIFIED: _ClassVar[DataType]
    DATA_TYPE_FLOAT32: _ClassVar[DataType]
    DATA_TYPE_FLOAT16: _ClassVar[DataType]
    DATA_TYPE_BFLOAT16: _ClassVar[DataType]
    DATA_TYPE_INT64: _ClassVar[DataType]
    DATA_TYPE_INT32: _ClassVar[DataType]
    DATA_TYPE_UINT8: _ClassVar[DataType]
    DATA_TYPE_BOOL: _ClassVar[DataType]
    DATA_TYPE_FLOAT8_E4M3: _ClassVar[DataType]
    DATA_TYPE_FLOAT8_E5M2: _ClassVar[DataType]
    DATA_TYPE_INT16: _ClassVar[DataType]

class LateInteractionMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LATE_INTERACTION_MODE_UNSPECIFIED: _ClassVar[LateInteractionMode]
    LATE_INTERACTION_MODE_CACHE_QUERY: _ClassVar[LateInteractionMode]
    LATE_INTERACTION_MODE_SCORE_DOCUMENT: _ClassVar[LateInteractionMode]

class FieldLayout(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FIELD_LAYOUT_UNSPECIFIED: _ClassVar[FieldLayout]
    FIELD_LAYOUT_BATCHED: _ClassVar[FieldLayout]
    FIELD_LAYOUT_FLAT: _ClassVar[FieldLayout]
    FIELD_LAYOUT_SHARED: _ClassVar[FieldLayout]

class SpeechTask(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SPEECH_TASK_UNSPECIFIED: _ClassVar[SpeechTask]
    SPEECH_TASK_TRANSCRIBE: _ClassVar[SpeechTask]
    SPEECH_TASK_TRANSLATE: _ClassVar[SpeechTask]
CAPABILITY_UNSPECIFIED: Capability
CAPABILITY_SHARED_SAMPLING_PARAMS: Capability
CAPABILITY_POOLING: Capability
CAPABILITY_LORA: Capability
CAPABILITY_MULTIMODAL: Capability
CAPABILITY_PROMPT_EMBEDS: Capability
CAPABILITY_DRAFT_TOKENS: Capability
CAPABILITY_KV_GROUPS: Capability
CAPABILITY_KV_TRANSFER: Capability
CAPABILITY_WORKER_GROUP: Capability
CAPABILITY_WEIGHT_UPDATE: Capability
CAPABILITY_DRAFTS_WITH_STATES: Capability
CAPABILITY_LOGPROBS_MODES: Capability
CAPABILITY_PROMPT_SCORES: Capability
CAPABILITY_KV_TRANSFER_CANCEL: Capability
CAPABILITY_TOKEN_TIMES: Capability
KV_CACHE_KIND_UNSPECIFIED: KvCacheKind
KV_CACHE_KIND_FULL_ATTENTION: KvCacheKind
KV_CACHE_KIND_SLIDING_WINDOW: KvCacheKind
KV_CACHE_KIND_CHUNKED_LOCAL: KvCacheKind
KV_CACHE_KIND_LATENT: KvCacheKind
KV_CACHE_KIND_STATE: KvCacheKind
KV_CACHE_KIND_CROSS_ATTENTION: KvCacheKind
KV_ROLE_UNSPECIFIED: KvRole
KV_ROLE_PRODUCER: KvRole
KV_ROLE_CONSUMER: KvRole
KV_ROLE_BOTH: KvRole
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_ABORT: FinishReason
FINISH_REASON_ERROR: FinishReason
FINISH_REASON_REPETITION: FinishReason
DATA_TYPE_UNSPECIFIED: DataType
DATA_TYPE_FLOAT32: DataType
DATA_TYPE_FLOAT16: DataType
DATA_TYPE_BFLOAT16: DataType
DATA_TYPE_INT64: DataType
DATA_TYPE_INT32: DataType
DATA_TYPE_UINT8: DataType
DATA_TYPE_BOOL: DataType
DATA_TYPE_FLOAT8_E4M3: DataType
DATA_TYPE_FLOAT8_E5M2: DataType
DATA_TYPE_INT16: DataType
LATE_INTERACTION_MODE_UNSPECIFIED: LateInteractionMode
LATE_INTERACTION_MODE_CACHE_QUERY: LateInteractionMode
LATE_INTERACTION_MODE_SCORE_DOCUMENT: LateInteractionMode
FIELD_LAYOUT_UNSPECIFIED: FieldLayout
FIELD_LAYOUT_BATCHED: FieldLayout
FIELD_LAYOUT_FLAT: FieldLayout
FIELD_LAYOUT_SHARED: FieldLayout
SPEECH_TASK_UNSPECIFIED: SpeechTask
SPEECH_TASK_TRANSCRIBE: SpeechTask
SPEECH_TASK_TRANSLATE: SpeechTask

class StopReason(_message.Message):
    __slots__ = ("token_id", "text")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    text: str
    def __init__(self, token_id: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: bytes
    def __init__(self, ids: _Optional[bytes] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "min_tokens", "ignore_eos", "stop_token_ids", "logprobs", "prompt_logprobs", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "allowed_token_ids", "bad_words_token_ids", "structured_outputs", "repetition_detection", "logprob_token_ids", "skip_reading_prefix_cache", "thinking_token_budget", "extra_args", "thinking_end_token_ids", "thinking_start_token_ids", "prompt_score_ids", "speech_rules")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STRUCTURED_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    REPETITION_DETECTION_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SKIP_READING_PREFIX_CACHE_FIELD_NUMBER: _ClassVar[int]
    THINKING_TOKEN_BUDGET_FIELD_NUMBER: _ClassVar[int]
    EXTRA_ARGS_FIELD_NUMBER: _ClassVar[int]
    THINKING_END_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    THINKING_START_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_SCORE_IDS_FIELD_NUMBER: _ClassVar[int]
    SPEECH_RULES_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: int
    prompt_logprobs: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    allowed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    bad_words_token_ids: _containers.RepeatedCompositeFieldContainer[TokenIds]
    structured_outputs: StructuredOutputs
    repetition_detection: RepetitionDetection
    logprob_token_ids: _containers.RepeatedScalarFieldContainer[int]
    skip_reading_prefix_cache: bool
    thinking_token_budget: int
    extra_args: _struct_pb2.Struct
    thinking_end_token_ids: _containers.RepeatedScalarFieldContainer[int]
    thinking_start_token_ids: _containers.RepeatedScalarFieldContainer[int]
    prompt_score_ids: PromptScoreIds
    speech_rules: SpeechRules
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., ignore_eos: _Optional[bool] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., allowed_token_ids: _Optional[_Iterable[int]] = ..., bad_words_token_ids: _Optional[_Iterable[_Union[TokenIds, _Mapping]]] = ..., structured_outputs: _Optional[_Union[StructuredOutputs, _Mapping]] = ..., repetition_detection: _Optional[_Union[RepetitionDetection, _Mapping]] = ..., logprob_token_ids: _Optional[_Iterable[int]] = ..., skip_reading_prefix_cache: _Optional[bool] = ..., thinking_token_budget: _Optional[int] = ..., extra_args: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., thinking_end_token_ids: _Optional[_Iterable[int]] = ..., thinking_start_token_ids: _Optional[_Iterable[int]] = ..., prompt_score_ids: _Optional[_Union[PromptScoreIds, _Mapping]] = ..., speech_rules: _Optional[_Union[SpeechRules, _Mapping]] = ...) -> None: ...

class SpeechRules(_message.Message):
    __slots__ = ("suppressed_token_ids", "suppressed_first_token_ids", "first_timestamp_id", "max_initial_timestamp", "written_before")
    SUPPRESSED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SUPPRESSED_FIRST_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TIMESTAMP_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_INITIAL_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_BEFORE_FIELD_NUMBER: _ClassVar[int]
    suppressed_token_ids: bytes
    suppressed_first_token_ids: bytes
    first_timestamp_id: int
    max_initial_timestamp: int
    written_before: int
    def __init__(self, suppressed_token_ids: _Optional[bytes] = ..., suppressed_first_token_ids: _Optional[bytes] = ..., first_timestamp_id: _Optional[int] = ..., max_initial_timestamp: _Optional[int] = ..., written_before: _Optional[int] = ...) -> None: ...

class PromptScoreIds(_message.Message):
    __slots__ = ("token_ids", "width", "start", "num_positions")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    NUM_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    width: int
    start: int
    num_positions: int
    def __init__(self, token_ids: _Optional[bytes] = ..., width: _Optional[int] = ..., start: _Optional[int] = ..., num_positions: _Optional[int] = ...) -> None: ...

class RepetitionDetection(_message.Message):
    __slots__ = ("max_pattern_size", "min_pattern_size", "min_count")
    MAX_PATTERN_SIZE_FIELD_NUMBER: _ClassVar[int]
    MIN_PATTERN_SIZE_FIELD_NUMBER: _ClassVar[int]
    MIN_COUNT_FIELD_NUMBER: _ClassVar[int]
    max_pattern_size: int
    min_pattern_size: int
    min_count: int
    def __init__(self, max_pattern_size: _Optional[int] = ..., min_pattern_size: _Optional[int] = ..., min_count: _Optional[int] = ...) -> None: ...

class StructuredOutputs(_message.Message):
    __slots__ = ("json_schema", "json_object", "regex", "choice", "grammar", "structural_tag", "disable_any_whitespace", "disable_additional_properties", "whitespace_pattern", "start_after_token_ids", "opening_token_ids")
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    JSON_OBJECT_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    STRUCTURAL_TAG_FIELD_NUMBER: _ClassVar[int]
    DISABLE_ANY_WHITESPACE_FIELD_NUMBER: _ClassVar[int]
    DISABLE_ADDITIONAL_PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    WHITESPACE_PATTERN_FIELD_NUMBER: _ClassVar[int]
    START_AFTER_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    OPENING_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    json_schema: str
    json_object: bool
    regex: str
    choice: ChoiceList
    grammar: str
    structural_tag: str
    disable_any_whitespace: bool
    disable_additional_properties: bool
    whitespace_pattern: str
    start_after_token_ids: _containers.RepeatedScalarFieldContainer[int]
    opening_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, json_schema: _Optional[str] = ..., json_object: _Optional[bool] = ..., regex: _Optional[str] = ..., choice: _Optional[_Union[ChoiceList, _Mapping]] = ..., grammar: _Optional[str] = ..., structural_tag: _Optional[str] = ..., disable_any_whitespace: _Optional[bool] = ..., disable_additional_properties: _Optional[bool] = ..., whitespace_pattern: _Optional[str] = ..., start_after_token_ids: _Optional[_Iterable[int]] = ..., opening_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ChoiceList(_message.Message):
    __slots__ = ("choices",)
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    choices: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, choices: _Optional[_Iterable[str]] = ...) -> None: ...

class PoolingParams(_message.Message):
    __slots__ = ("task", "use_activation", "dimensions", "skip_reading_prefix_cache", "extra_args", "step_tag_id", "returned_token_ids", "token_type_boundary", "late_interaction")
    TASK_FIELD_NUMBER: _ClassVar[int]
    USE_ACTIVATION_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    SKIP_READING_PREFIX_CACHE_FIELD_NUMBER: _ClassVar[int]
    EXTRA_ARGS_FIELD_NUMBER: _ClassVar[int]
    STEP_TAG_ID_FIELD_NUMBER: _ClassVar[int]
    RETURNED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_TYPE_BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    LATE_INTERACTION_FIELD_NUMBER: _ClassVar[int]
    task: str
    use_activation: bool
    dimensions: int
    skip_reading_prefix_cache: bool
    extra_args: _struct_pb2.Struct
    step_tag_id: int
    returned_token_ids: _containers.RepeatedScalarFieldContainer[int]
    token_type_boundary: int
    late_interaction: LateInteraction
    def __init__(self, task: _Optional[str] = ..., use_activation: _Optional[bool] = ..., dimensions: _Optional[int] = ..., skip_reading_prefix_cache: _Optional[bool] = ..., extra_args: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., step_tag_id: _Optional[int] = ..., returned_token_ids: _Optional[_Iterable[int]] = ..., token_type_boundary: _Optional[int] = ..., late_interaction: _Optional[_Union[LateInteraction, _Mapping]] = ...) -> None: ...

class LateInteraction(_message.Message):
    __slots__ = ("mode", "query_key", "query_uses")
    MODE_FIELD_NUMBER: _ClassVar[int]
    QUERY_KEY_FIELD_NUMBER: _ClassVar[int]
    QUERY_USES_FIELD_NUMBER: _ClassVar[int]
    mode: LateInteractionMode
    query_key: str
    query_uses: int
    def __init__(self, mode: _Optional[_Union[LateInteractionMode, str]] = ..., query_key: _Optional[str] = ..., query_uses: _Optional[int] = ...) -> None: ...

class PoolingInfo(_message.Message):
    __slots__ = ("tasks", "embedding_size", "is_matryoshka", "matryoshka_dimensions", "labels", "is_causal", "num_labels", "needs_all_tokens", "generates", "chunked_processing", "max_embed_len")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_SIZE_FIELD_NUMBER: _ClassVar[int]
    IS_MATRYOSHKA_FIELD_NUMBER: _ClassVar[int]
    MATRYOSHKA_DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    IS_CAUSAL_FIELD_NUMBER: _ClassVar[int]
    NUM_LABELS_FIELD_NUMBER: _ClassVar[int]
    NEEDS_ALL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GENERATES_FIELD_NUMBER: _ClassVar[int]
    CHUNKED_PROCESSING_FIELD_NUMBER: _ClassVar[int]
    MAX_EMBED_LEN_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedScalarFieldContainer[str]
    embedding_size: int
    is_matryoshka: bool
    matryoshka_dimensions: _containers.RepeatedScalarFieldContainer[int]
    labels: _containers.RepeatedScalarFieldContainer[str]
    is_causal: bool
    num_labels: int
    needs_all_tokens: bool
    generates: bool
    chunked_processing: bool
    max_embed_len: int
    def __init__(self, tasks: _Optional[_Iterable[str]] = ..., embedding_size: _Optional[int] = ..., is_matryoshka: _Optional[bool] = ..., matryoshka_dimensions: _Optional[_Iterable[int]] = ..., labels: _Optional[_Iterable[str]] = ..., is_causal: _Optional[bool] = ..., num_labels: _Optional[int] = ..., needs_all_tokens: _Optional[bool] = ..., generates: _Optional[bool] = ..., chunked_processing: _Optional[bool] = ..., max_embed_len: _Optional[int] = ...) -> None: ...

class ModalityInfo(_message.Message):
    __slots__ = ("modality", "max_items", "max_embeds_per_item", "is_whole")
    MODALITY_FIELD_NUMBER: _ClassVar[int]
    MAX_ITEMS_FIELD_NUMBER: _ClassVar[int]
    MAX_EMBEDS_PER_ITEM_FIELD_NUMBER: _ClassVar[int]
    IS_WHOLE_FIELD_NUMBER: _ClassVar[int]
    modality: str
    max_items: int
    max_embeds_per_item: int
    is_whole: bool
    def __init__(self, modality: _Optional[str] = ..., max_items: _Optional[int] = ..., max_embeds_per_item: _Optional[int] = ..., is_whole: _Optional[bool] = ...) -> None: ...

class LoraLimits(_message.Message):
    __slots__ = ("max_loras", "max_lora_rank", "max_cpu_loras")
    MAX_LORAS_FIELD_NUMBER: _ClassVar[int]
    MAX_LORA_RANK_FIELD_NUMBER: _ClassVar[int]
    MAX_CPU_LORAS_FIELD_NUMBER: _ClassVar[int]
    max_loras: int
    max_lora_rank: int
    max_cpu_loras: int
    def __init__(self, max_loras: _Optional[int] = ..., max_lora_rank: _Optional[int] = ..., max_cpu_loras: _Optional[int] = ...) -> None: ...

class KvTransferParams(_message.Message):
    __slots__ = ("do_remote_decode", "do_remote_prefill", "remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_block_ids", "tp_size", "pp_size", "remote_num_tokens", "lease_id", "transfer_mode", "extra_json")
    DO_REMOTE_DECODE_FIELD_NUMBER: _ClassVar[int]
    DO_REMOTE_PREFILL_FIELD_NUMBER: _ClassVar[int]
    REMOTE_ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    REMOTE_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REMOTE_HOST_FIELD_NUMBER: _ClassVar[int]
    REMOTE_PORT_FIELD_NUMBER: _ClassVar[int]
    REMOTE_BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    TP_SIZE_FIELD_NUMBER: _ClassVar[int]
    PP_SIZE_FIELD_NUMBER: _ClassVar[int]
    REMOTE_NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_MODE_FIELD_NUMBER: _ClassVar[int]
    EXTRA_JSON_FIELD_NUMBER: _ClassVar[int]
    do_remote_decode: bool
    do_remote_prefill: bool
    remote_engine_id: str
    remote_request_id: str
    remote_host: str
    remote_port: int
    remote_block_ids: _containers.RepeatedScalarFieldContainer[bytes]
    tp_size: int
    pp_size: int
    remote_num_tokens: int
    lease_id: int
    transfer_mode: str
    extra_json: str
    def __init__(self, do_remote_decode: _Optional[bool] = ..., do_remote_prefill: _Optional[bool] = ..., remote_engine_id: _Optional[str] = ..., remote_request_id: _Optional[str] = ..., remote_host: _Optional[str] = ..., remote_port: _Optional[int] = ..., remote_block_ids: _Optional[_Iterable[bytes]] = ..., tp_size: _Optional[int] = ..., pp_size: _Optional[int] = ..., remote_num_tokens: _Optional[int] = ..., lease_id: _Optional[int] = ..., transfer_mode: _Optional[str] = ..., extra_json: _Optional[str] = ...) -> None: ...

class LogprobsColumns(_message.Message):
    __slots__ = ("token_ids", "logprobs", "ranks", "num_positions", "width")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    NUM_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    logprobs: bytes
    ranks: bytes
    num_positions: int
    width: int
    def __init__(self, token_ids: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., ranks: _Optional[bytes] = ..., num_positions: _Optional[int] = ..., width: _Optional[int] = ...) -> None: ...

class PromptScores(_message.Message):
    __slots__ = ("scores", "num_rows", "width")
    SCORES_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    scores: bytes
    num_rows: int
    width: int
    def __init__(self, scores: _Optional[bytes] = ..., num_rows: _Optional[int] = ..., width: _Optional[int] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("dtype", "shape", "inline", "shared_memory", "remote")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    INLINE_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    REMOTE_FIELD_NUMBER: _ClassVar[int]
    dtype: DataType
    shape: _containers.RepeatedScalarFieldContainer[int]
    inline: bytes
    shared_memory: SharedMemoryRef
    remote: RemoteRef
    def __init__(self, dtype: _Optional[_Union[DataType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., inline: _Optional[bytes] = ..., shared_memory: _Optional[_Union[SharedMemoryRef, _Mapping]] = ..., remote: _Optional[_Union[RemoteRef, _Mapping]] = ...) -> None: ...

class SharedMemoryRef(_message.Message):
    __slots__ = ("name", "offset_bytes", "size_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    offset_bytes: int
    size_bytes: int
    def __init__(self, name: _Optional[str] = ..., offset_bytes: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class RemoteRef(_message.Message):
    __slots__ = ("transport", "size_bytes", "locator")
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOCATOR_FIELD_NUMBER: _ClassVar[int]
    transport: str
    size_bytes: int
    locator: bytes
    def __init__(self, transport: _Optional[str] = ..., size_bytes: _Optional[int] = ..., locator: _Optional[bytes] = ...) -> None: ...

class MultiModalFeature(_message.Message):
    __slots__ = ("modality", "identifier", "hash", "offset", "length", "tensors", "is_embed", "num_embeds", "layouts", "grid", "time_step")
    class TensorsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Tensor
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...
    class LayoutsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: FieldLayout
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[FieldLayout, str]] = ...) -> None: ...
    MODALITY_FIELD_NUMBER: _ClassVar[int]
    IDENTIFIER_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    IS_EMBED_FIELD_NUMBER: _ClassVar[int]
    NUM_EMBEDS_FIELD_NUMBER: _ClassVar[int]
    LAYOUTS_FIELD_NUMBER: _ClassVar[int]
    GRID_FIELD_NUMBER: _ClassVar[int]
    TIME_STEP_FIELD_NUMBER: _ClassVar[int]
    modality: str
    identifier: str
    hash: str
    offset: int
    length: int
    tensors: _containers.MessageMap[str, Tensor]
    is_embed: bytes
    num_embeds: int
    layouts: _containers.ScalarMap[str, FieldLayout]
    grid: _containers.RepeatedScalarFieldContainer[int]
    time_step: float
    def __init__(self, modality: _Optional[str] = ..., identifier: _Optional[str] = ..., hash: _Optional[str] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., tensors: _Optional[_Mapping[str, Tensor]] = ..., is_embed: _Optional[bytes] = ..., num_embeds: _Optional[int] = ..., layouts: _Optional[_Mapping[str, FieldLayout]] = ..., grid: _Optional[_Iterable[int]] = ..., time_step: _Optional[float] = ...) -> None: ...

class LoraRequest(_message.Message):
    __slots__ = ("name", "id", "path", "load_inplace", "base_model_name", "is_3d_lora_weight")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    LOAD_INPLACE_FIELD_NUMBER: _ClassVar[int]
    BASE_MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    IS_3D_LORA_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    name: str
    id: int
    path: str
    load_inplace: bool
    base_model_name: str
    is_3d_lora_weight: bool
    def __init__(self, name: _Optional[str] = ..., id: _Optional[int] = ..., path: _Optional[str] = ..., load_inplace: _Optional[bool] = ..., base_model_name: _Optional[str] = ..., is_3d_lora_weight: _Optional[bool] = ...) -> None: ...
