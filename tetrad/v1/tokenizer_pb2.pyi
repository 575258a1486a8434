from google.rpc import status_pb2 as _status_pb2
from tetrad.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TruncationSide(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRUNCATION_SIDE_UNSPECIFIED: _ClassVar[TruncationSide]
    TRUNCATION_SIDE_LEFT: _ClassVar[TruncationSide]
    TRUNCATION_SIDE_RIGHT: _ClassVar[TruncationSide]
TRUNCATION_SIDE_UNSPECIFIED: TruncationSide
TRUNCATION_SIDE_LEFT: TruncationSide
TRUNCATION_SIDE_RIGHT: TruncationSide

class EncodeRequest(_message.Message):
    __slots__ = ("texts", "add_special_tokens", "max_tokens", "truncation_side", "return_token_strings", "text_pairs", "media", "mm_processor_kwargs_json", "chat_template", "chat_template_kwargs_json", "token_ids", "media_io_kwargs_json")
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    ADD_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_SIDE_FIELD_NUMBER: _ClassVar[int]
    RETURN_TOKEN_STRINGS_FIELD_NUMBER: _ClassVar[int]
    TEXT_PAIRS_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    MM_PROCESSOR_KWARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_KWARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MEDIA_IO_KWARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    add_special_tokens: bool
    max_tokens: int
    truncation_side: TruncationSide
    return_token_strings: bool
    text_pairs: _containers.RepeatedScalarFieldContainer[str]
    media: _containers.RepeatedCompositeFieldContainer[MediaItem]
    mm_processor_kwargs_json: bytes
    chat_template: str
    chat_template_kwargs_json: bytes
    token_ids: bytes
    media_io_kwargs_json: bytes
    def __init__(self, texts: _Optional[_Iterable[str]] = ..., add_special_tokens: _Optional[bool] = ..., max_tokens: _Optional[int] = ..., truncation_side: _Optional[_Union[TruncationSide, str]] = ..., return_token_strings: _Optional[bool] = ..., text_pairs: _Optional[_Iterable[str]] = ..., media: _Optional[_Iterable[_Union[MediaItem, _Mapping]]] = ..., mm_processor_kwargs_json: _Optional[bytes] = ..., chat_template: _Optional[str] = ..., chat_template_kwargs_json: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., media_io_kwargs_json: _Optional[bytes] = ...) -> None: ...

class MediaItem(_message.Message):
    __slots__ = ("modality", "data", "uuid", "media_type", "is_embeds")
    MODALITY_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    IS_EMBEDS_FIELD_NUMBER: _ClassVar[int]
    modality: str
    data: bytes
    uuid: str
    media_type: str
    is_embeds: bool
    def __init__(self, modality: _Optional[str] = ..., data: _Optional[bytes] = ..., uuid: _Optional[str] = ..., media_type: _Optional[str] = ..., is_embeds: _Optional[bool] = ...) -> None: ...

class EncodeResponse(_message.Message):
    __slots__ = ("encodings",)
    ENCODINGS_FIELD_NUMBER: _ClassVar[int]
    encodings: _containers.RepeatedCompositeFieldContainer[Encoding]
    def __init__(self, encodings: _Optional[_Iterable[_Union[Encoding, _Mapping]]] = ...) -> None: ...

class Encoding(_message.Message):
    __slots__ = ("token_ids", "token_strings", "token_type_boundary", "mm_features")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_STRINGS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_TYPE_BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    MM_FEATURES_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    token_strings: _containers.RepeatedScalarFieldContainer[str]
    token_type_boundary: int
    mm_features: _containers.RepeatedCompositeFieldContainer[_types_pb2.MultiModalFeature]
    def __init__(self, token_ids: _Optional[bytes] = ..., token_strings: _Optional[_Iterable[str]] = ..., token_type_boundary: _Optional[int] = ..., mm_features: _Optional[_Iterable[_Union[_types_pb2.MultiModalFeature, _Mapping]]] = ...) -> None: ...

class DecodeRequest(_message.Message):
    __slots__ = ("sequences", "skip_special_tokens")
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedCompositeFieldContainer[_types_pb2.TokenIds]
    skip_special_tokens: bool
    def __init__(self, sequences: _Optional[_Iterable[_Union[_types_pb2.TokenIds, _Mapping]]] = ..., skip_special_tokens: _Optional[bool] = ...) -> None: ...

class DecodeResponse(_message.Message):
    __slots__ = ("texts",)
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, texts: _Optional[_Iterable[str]] = ...) -> None: ...

class RenderChatRequest(_message.Message):
    __slots__ = ("messages_json", "tools_json", "documents_json", "chat_template", "chat_template_kwargs_json", "add_generation_prompt", "continue_final_message", "add_special_tokens", "max_tokens", "truncation_side", "max_prompt_chars", "media", "mm_processor_kwargs_json", "media_io_kwargs_json")
    MESSAGES_JSON_FIELD_NUMBER: _ClassVar[int]
    TOOLS_JSON_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_KWARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    ADD_GENERATION_PROMPT_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_FINAL_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ADD_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_SIDE_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPT_CHARS_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    MM_PROCESSOR_KWARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    MEDIA_IO_KWARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    messages_json: bytes
    tools_json: bytes
    documents_json: bytes
    chat_template: str
    chat_template_kwargs_json: bytes
    add_generation_prompt: bool
    continue_final_message: bool
    add_special_tokens: bool
    max_tokens: int
    truncation_side: TruncationSide
    max_prompt_chars: int
    media: _containers.RepeatedCompositeFieldContainer[MediaItem]
    mm_processor_kwargs_json: bytes
    media_io_kwargs_json: bytes
    def __init__(self, messages_json: _Optional[bytes] = ..., tools_json: _Optional[bytes] = ..., documents_json: _Optional[bytes] = ..., chat_template: _Optional[str] = ..., chat_template_kwargs_json: _Optional[bytes] = ..., add_generation_prompt: _Optional[bool] = ..., continue_final_message: _Optional[bool] = ..., add_special_tokens: _Optional[bool] = ..., max_tokens: _Optional[int] = ..., truncation_side: _Optional[_Union[TruncationSide, str]] = ..., max_prompt_chars: _Optional[int] = ..., media: _Optional[_Iterable[_Union[MediaItem, _Mapping]]] = ..., mm_processor_kwargs_json: _Optional[bytes] = ..., media_io_kwargs_json: _Optional[bytes] = ...) -> None: ...

class RenderChatResponse(_message.Message):
    __slots__ = ("prompt", "token_ids", "mm_features")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MM_FEATURES_FIELD_NUMBER: _ClassVar[int]
    prompt: str
    token_ids: bytes
    mm_features: _containers.RepeatedCompositeFieldContainer[_types_pb2.MultiModalFeature]
    def __init__(self, prompt: _Optional[str] = ..., token_ids: _Optional[bytes] = ..., mm_features: _Optional[_Iterable[_Union[_types_pb2.MultiModalFeature, _Mapping]]] = ...) -> None: ...

class BatchRequest(_message.Message):
    __slots__ = ("calls", "id")
    CALLS_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[BatchedCall]
    id: int
    def __init__(self, calls: _Optional[_Iterable[_Union[BatchedCall, _Mapping]]] = ..., id: _Optional[int] = ...) -> None: ...

class BatchedCall(_message.Message):
    __slots__ = ("encode", "render_chat", "trace_headers")
    class TraceHeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ENCODE_FIELD_NUMBER: _ClassVar[int]
    RENDER_CHAT_FIELD_NUMBER: _ClassVar[int]
    TRACE_HEADERS_FIELD_NUMBER: _ClassVar[int]
    encode: EncodeRequest
    render_chat: RenderChatRequest
    trace_headers: _containers.ScalarMap[str, str]
    def __init__(self, encode: _Optional[_Union[EncodeRequest, _Mapping]] = ..., render_chat: _Optional[_Union[RenderChatRequest, _Mapping]] = ..., trace_headers: _Optional[_Mapping[str, str]] = ...) -> None: ...

class BatchResponse(_message.Message):
    __slots__ = ("answers", "id")
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[BatchedAnswer]
    id: int
    def __init__(self, answers: _Optional[_Iterable[_Union[BatchedAnswer, _Mapping]]] = ..., id: _Optional[int] = ...) -> None: ...

class BatchedAnswer(_message.Message):
    __slots__ = ("encode", "render_chat", "error")
    ENCODE_FIELD_NUMBER: _ClassVar[int]
    RENDER_CHAT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    encode: EncodeResponse
    render_chat: RenderChatResponse
    error: _status_pb2.Status
    def __init__(self, encode: _Optional[_Union[EncodeResponse, _Mapping]] = ..., render_chat: _Optional[_Union[RenderChatResponse, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class DetokenizeRequest(_message.Message):
    __slots__ = ("open", "append", "close")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    open: _containers.RepeatedCompositeFieldContainer[DetokenizeOpen]
    append: DetokenizeAppend
    close: bytes
    def __init__(self, open: _Optional[_Iterable[_Union[DetokenizeOpen, _Mapping]]] = ..., append: _Optional[_Union[DetokenizeAppend, _Mapping]] = ..., close: _Optional[bytes] = ...) -> None: ...

class DetokenizeOpen(_message.Message):
    __slots__ = ("handle", "context_token_ids", "num_generated", "num_chars_emitted", "skip_special_tokens", "spaces_between_special_tokens")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_GENERATED_FIELD_NUMBER: _ClassVar[int]
    NUM_CHARS_EMITTED_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SPACES_BETWEEN_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    context_token_ids: bytes
    num_generated: int
    num_chars_emitted: int
    skip_special_tokens: bool
    spaces_between_special_tokens: bool
    def __init__(self, handle: _Optional[int] = ..., context_token_ids: _Optional[bytes] = ..., num_generated: _Optional[int] = ..., num_chars_emitted: _Optional[int] = ..., skip_special_tokens: _Optional[bool] = ..., spaces_between_special_tokens: _Optional[bool] = ...) -> None: ...

class DetokenizeAppend(_message.Message):
    __slots__ = ("handles", "num_tokens", "token_ids", "final_handles")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FINAL_HANDLES_FIELD_NUMBER: _ClassVar[int]
    handles: bytes
    num_tokens: bytes
    token_ids: bytes
    final_handles: bytes
    def __init__(self, handles: _Optional[bytes] = ..., num_tokens: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., final_handles: _Optional[bytes] = ...) -> None: ...

class DetokenizeResponse(_message.Message):
    __slots__ = ("handles", "deltas", "failures")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    handles: bytes
    deltas: _containers.RepeatedScalarFieldContainer[str]
    failures: _containers.RepeatedCompositeFieldContainer[DetokenizeFailure]
    def __init__(self, handles: _Optional[bytes] = ..., deltas: _Optional[_Iterable[str]] = ..., failures: _Optional[_Iterable[_Union[DetokenizeFailure, _Mapping]]] = ...) -> None: ...

class DetokenizeFailure(_message.Message):
    __slots__ = ("handle", "status")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    status: _status_pb2.Status
    def __init__(self, handle: _Optional[int] = ..., status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class GetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetInfoResponse(_message.Message):
    __slots__ = ("model", "vocab_size", "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "eos_token_ids", "has_chat_template", "chat_template", "model_max_length", "tokenizer_hash", "special_token_ids", "version", "generation_config_json", "modalities", "prompts", "speech_tasks")
    class PromptsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    BOS_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    PAD_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    UNK_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    HAS_CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    MODEL_MAX_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_HASH_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    MODALITIES_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    SPEECH_TASKS_FIELD_NUMBER: _ClassVar[int]
    model: str
    vocab_size: int
    bos_token_id: int
    eos_token_id: int
    pad_token_id: int
    unk_token_id: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    has_chat_template: bool
    chat_template: str
    model_max_length: int
    tokenizer_hash: str
    special_token_ids: _containers.RepeatedScalarFieldContainer[int]
    version: str
    generation_config_json: str
    modalities: _containers.RepeatedCompositeFieldContainer[_types_pb2.ModalityInfo]
    prompts: _containers.ScalarMap[str, str]
    speech_tasks: _containers.RepeatedScalarFieldContainer[_types_pb2.SpeechTask]
    def __init__(self, model: _Optional[str] = ..., vocab_size: _Optional[int] = ..., bos_token_id: _Optional[int] = ..., eos_token_id: _Optional[int] = ..., pad_token_id: _Optional[int] = ..., unk_token_id: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., has_chat_template: _Optional[bool] = ..., chat_template: _Optional[str] = ..., model_max_length: _Optional[int] = ..., tokenizer_hash: _Optional[str] = ..., special_token_ids: _Optional[_Iterable[int]] = ..., version: _Optional[str] = ..., generation_config_json: _Optional[str] = ..., modalities: _Optional[_Iterable[_Union[_types_pb2.ModalityInfo, _Mapping]]] = ..., prompts: _Optional[_Mapping[str, str]] = ..., speech_tasks: _Optional[_Iterable[_Union[_types_pb2.SpeechTask, str]]] = ...) -> None: ...

class PrepareSpeechRequest(_message.Message):
    __slots__ = ("data", "media_type", "task", "language", "to_language", "prompt", "with_timestamps")
    DATA_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TO_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    WITH_TIMESTAMPS_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    media_type: str
    task: _types_pb2.SpeechTask
    language: str
    to_language: str
    prompt: str
    with_timestamps: bool
    def __init__(self, data: _Optional[bytes] = ..., media_type: _Optional[str] = ..., task: _Optional[_Union[_types_pb2.SpeechTask, str]] = ..., language: _Optional[str] = ..., to_language: _Optional[str] = ..., prompt: _Optional[str] = ..., with_timestamps: _Optional[bool] = ...) -> None: ...

class PrepareSpeechResponse(_message.Message):
    __slots__ = ("facts", "piece")
    FACTS_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    facts: SpeechFacts
    piece: SpeechPiece
    def __init__(self, facts: _Optional[_Union[SpeechFacts, _Mapping]] = ..., piece: _Optional[_Union[SpeechPiece, _Mapping]] = ...) -> None: ...

class SpeechFacts(_message.Message):
    __slots__ = ("duration_s", "num_pieces", "language", "detection", "first_timestamp_id", "timestamp_step_s", "rules", "no_speech")
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    NUM_PIECES_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    DETECTION_FIELD_NUMBER: _ClassVar[int]
    FIRST_TIMESTAMP_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_STEP_S_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    NO_SPEECH_FIELD_NUMBER: _ClassVar[int]
    duration_s: float
    num_pieces: int
    language: str
    detection: LanguageDetection
    first_timestamp_id: int
    timestamp_step_s: float
    rules: _types_pb2.SpeechRules
    no_speech: NoSpeech
    def __init__(self, duration_s: _Optional[float] = ..., num_pieces: _Optional[int] = ..., language: _Optional[str] = ..., detection: _Optional[_Union[LanguageDetection, _Mapping]] = ..., first_timestamp_id: _Optional[int] = ..., timestamp_step_s: _Optional[float] = ..., rules: _Optional[_Union[_types_pb2.SpeechRules, _Mapping]] = ..., no_speech: _Optional[_Union[NoSpeech, _Mapping]] = ...) -> None: ...

class NoSpeech(_message.Message):
    __slots__ = ("token_id", "position")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    position: int
    def __init__(self, token_id: _Optional[int] = ..., position: _Optional[int] = ...) -> None: ...

class LanguageDetection(_message.Message):
    __slots__ = ("prompt_token_ids", "language_token_ids", "languages")
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LANGUAGES_FIELD_NUMBER: _ClassVar[int]
    prompt_token_ids: bytes
    language_token_ids: bytes
    languages: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, prompt_token_ids: _Optional[bytes] = ..., language_token_ids: _Optional[bytes] = ..., languages: _Optional[_Iterable[str]] = ...) -> None: ...

class SpeechPiece(_message.Message):
    __slots__ = ("start_s", "duration_s", "token_ids", "language_index", "mm_features")
    START_S_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_INDEX_FIELD_NUMBER: _ClassVar[int]
    MM_FEATURES_FIELD_NUMBER: _ClassVar[int]
    start_s: float
    duration_s: float
    token_ids: bytes
    language_index: int
    mm_features: _containers.RepeatedCompositeFieldContainer[_types_pb2.MultiModalFeature]
    def __init__(self, start_s: _Optional[float] = ..., duration_s: _Optional[float] = ..., token_ids: _Optional[bytes] = ..., language_index: _Optional[int] = ..., mm_features: _Optional[_Iterable[_Union[_types_pb2.MultiModalFeature, _Mapping]]] = ...) -> None: ...

class GetBundleRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetBundleResponse(_message.Message):
    __slots__ = ("data", "sha256")
    DATA_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    sha256: str
    def __init__(self, data: _Optional[bytes] = ..., sha256: _Optional[str] = ...) -> None: ...

class ResetMediaCacheRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResetMediaCacheResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
