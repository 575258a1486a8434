"""Speech wire: converts requests to prepare speech, and prepared recordings. Only the files of this room know protobuf."""

from collections.abc import Iterator, Sequence

from tetrad.services.errors import InvalidRequest
from tetrad.services.rpc.columns import pack_u32
from tetrad.tokenizer_svc.api.media_wire import write_feature
from tetrad.tokenizer_svc.speech.plans import Detection, Silence, SpeechRequest, Task, WritingRules
from tetrad.tokenizer_svc.speech.recordings import PreparedPiece, PreparedRecording
from tetrad.v1 import tokenizer_pb2, types_pb2

_TASKS: dict[types_pb2.SpeechTask, Task] = {
    types_pb2.SPEECH_TASK_UNSPECIFIED: "transcribe",
    types_pb2.SPEECH_TASK_TRANSCRIBE: "transcribe",
    types_pb2.SPEECH_TASK_TRANSLATE: "translate",
}


def decode_speech_request(request: tokenizer_pb2.PrepareSpeechRequest) -> SpeechRequest:
    """Return what is asked of a recording. Raises InvalidRequest for an unknown task."""
    task = _TASKS.get(request.task)
    if task is None:
        raise InvalidRequest(f"There is no task {request.task}.", field="task")
    return SpeechRequest(
        request.data,
        request.media_type,
        task,
        request.language,
        request.to_language,
        request.prompt,
        request.with_timestamps,
    )


def encode_tasks(tasks: Sequence[Task]) -> list[types_pb2.SpeechTask]:
    """Return tasks as values of the enum."""
    return [value for value, task in _TASKS.items() if task in tasks and value]


def encode_recording(prepared: PreparedRecording) -> Iterator[tokenizer_pb2.PrepareSpeechResponse]:
    """Yield the messages of a recording: its facts, then its pieces."""
    plan = prepared.plan
    facts = tokenizer_pb2.SpeechFacts(
        duration_s=prepared.duration_s,
        num_pieces=len(prepared.pieces),
        language=plan.language,
        detection=None if plan.detection is None else _encode_detection(plan.detection),
        first_timestamp_id=plan.first_timestamp_id,
        timestamp_step_s=plan.timestamp_step_s,
        rules=None if plan.rules is None else _encode_rules(plan.rules, plan.first_timestamp_id),
        no_speech=None
        if (silence := plan.silence) is None
        else tokenizer_pb2.NoSpeech(token_id=silence.token_id, position=silence.position),
    )
    yield tokenizer_pb2.PrepareSpeechResponse(facts=facts)
    for piece in prepared.pieces:
        yield _encode_piece(piece, plan.language_index)


def _encode_detection(detection: Detection) -> tokenizer_pb2.LanguageDetection:
    return tokenizer_pb2.LanguageDetection(
        prompt_token_ids=pack_u32(detection.prompt_token_ids),
        language_token_ids=pack_u32(detection.languages.keys()),
        languages=detection.languages.values(),
    )


def _encode_silence(silence: Silence) -> tokenizer_pb2.NoSpeech:
    return tokenizer_pb2.NoSpeech(token_id=silence.token_id, position=silence.position)


def _encode_rules(rules: WritingRules, first_timestamp_id: int | None) -> types_pb2.SpeechRules:
    return types_pb2.SpeechRules(
        suppressed_token_ids=pack_u32(rules.suppressed_ids),
        suppressed_first_token_ids=pack_u32(rules.suppressed_first_ids),
        first_timestamp_id=first_timestamp_id,
        max_initial_timestamp=rules.max_initial_timestamp,
    )


def _encode_piece(piece: PreparedPiece, language_index: int | None) -> tokenizer_pb2.PrepareSpeechResponse:
    response = tokenizer_pb2.PrepareSpeechResponse()
    message = response.piece
    message.start_s, message.duration_s = piece.start_s, piece.duration_s
    message.token_ids = pack_u32(piece.token_ids)
    if language_index is not None:
        message.language_index = language_index
    write_feature(message.mm_features.add(), piece.placed)
    return response
