"""Speech wire: converts recordings to messages for the tokenizer, and its answers to prepared speech. It only converts."""

from collections.abc import Sequence

from tetrad.frontend.engine.facts_wire import SPEECH_TASKS
from tetrad.frontend.media.speech import LanguageDetection, PreparedSpeech, Recording, Silence, SpeechPiece, SpeechRules
from tetrad.frontend.tokenizer.media_wire import decode_features
from tetrad.services.rpc.columns import unpack_u32
from tetrad.v1 import tokenizer_pb2, types_pb2

_TASKS = {task: value for value, task in SPEECH_TASKS.items()}


def encode_recording(recording: Recording) -> tokenizer_pb2.PrepareSpeechRequest:
    """Return the request for a recording."""
    return tokenizer_pb2.PrepareSpeechRequest(
        data=recording.data,
        media_type=recording.media_type,
        task=_TASKS[recording.task],
        language=recording.language,
        to_language=recording.to_language,
        prompt=recording.prompt,
        with_timestamps=recording.with_timestamps,
    )


def decode_speech(responses: Sequence[tokenizer_pb2.PrepareSpeechResponse]) -> PreparedSpeech:
    """Return the recording in a tokenizer's answer. Raises ValueError if the answer is not complete."""
    if not responses or responses[0].WhichOneof("part") != "facts":
        raise ValueError("the answer does not begin with facts")
    facts, pieces = responses[0].facts, [response.piece for response in responses[1:]]
    if len(pieces) != facts.num_pieces or not pieces:
        raise ValueError(f"the answer has {len(pieces)} pieces instead of {facts.num_pieces}")
    return PreparedSpeech(
        facts.duration_s,
        facts.language,
        _decode_detection(facts.detection) if facts.HasField("detection") else None,
        facts.first_timestamp_id if facts.HasField("first_timestamp_id") else None,
        facts.timestamp_step_s,
        tuple(map(_decode_piece, pieces)),
        _decode_rules(facts.rules) if facts.HasField("rules") else None,
        Silence(facts.no_speech.token_id, facts.no_speech.position) if facts.HasField("no_speech") else None,
    )


def _decode_rules(message: types_pb2.SpeechRules) -> SpeechRules:
    return SpeechRules(
        tuple(unpack_u32(message.suppressed_token_ids)),
        tuple(unpack_u32(message.suppressed_first_token_ids)),
        message.first_timestamp_id if message.HasField("first_timestamp_id") else None,
        message.max_initial_timestamp,
    )


def _decode_detection(message: tokenizer_pb2.LanguageDetection) -> LanguageDetection:
    ids = unpack_u32(message.language_token_ids)
    return LanguageDetection(unpack_u32(message.prompt_token_ids), dict(zip(ids, message.languages, strict=True)))


def _decode_piece(message: tokenizer_pb2.SpeechPiece) -> SpeechPiece:
    return SpeechPiece(
        message.start_s,
        message.duration_s,
        unpack_u32(message.token_ids),
        message.language_index if message.HasField("language_index") else None,
        decode_features(message.mm_features),
    )
