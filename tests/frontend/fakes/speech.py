"""Fake preparation of speech: a recording is ASCII text, and its pieces of 30 s are separated by bars."""

from tetrad.services.errors import InvalidRequest
from tetrad.services.rpc.columns import pack_u32
from tetrad.v1 import tokenizer_pb2, types_pb2

AUDIO = (types_pb2.ModalityInfo(modality="audio", max_items=1, max_embeds_per_item=1500),)
DETECTION = "<?>"
FIRST_TIMESTAMP, STEP_S = 200, 0.5
GERMAN, JAPANESE = 1, 2
"""Ids of the tokens of languages."""
PIECE_S = 30.0
TASKS = (types_pb2.SPEECH_TASK_TRANSCRIBE, types_pb2.SPEECH_TASK_TRANSLATE)
_NAMES = {types_pb2.SPEECH_TASK_TRANSCRIBE: "transcribe", types_pb2.SPEECH_TASK_TRANSLATE: "translate"}


class FakeSpeech:
    """What the fake tokenizer makes of recordings.

    Attributes:
        tasks: what it says of itself.
        requests: every PrepareSpeechRequest received.
        detects: whether a recording without a language has its language detected.
    """

    def __init__(self):
        self.tasks = ()
        self.requests = []
        self.detects = True

    def prepare(self, request):
        """Yield the answers; the prompt of a piece is `<task>` and the piece."""
        self.requests.append(request)
        if request.data == b"broken":
            raise InvalidRequest("Invalid or unsupported audio file.", field="data")
        if request.language not in ("", "de", "ja"):
            text = f"Unsupported language: {request.language!r}. Must be one of ['de', 'ja']."
            raise InvalidRequest(text, field="language")
        texts = request.data.decode().split("|")
        detection = None
        if not request.language and self.detects:
            detection = tokenizer_pb2.LanguageDetection(
                prompt_token_ids=pack_u32([*DETECTION.encode()]),
                language_token_ids=pack_u32([GERMAN, JAPANESE]),
                languages=["de", "ja"],
            )
        facts = tokenizer_pb2.SpeechFacts(
            duration_s=PIECE_S * len(texts),
            num_pieces=len(texts),
            language=request.language,
            detection=detection,
            first_timestamp_id=FIRST_TIMESTAMP if request.with_timestamps else None,
            timestamp_step_s=STEP_S,
        )
        yield tokenizer_pb2.PrepareSpeechResponse(facts=facts)
        for place, text in enumerate(texts):
            yield tokenizer_pb2.PrepareSpeechResponse(piece=self._piece(request, place, text, detection is not None))

    def _piece(self, request, place, text, is_detected):
        name = f"audio-{place}"
        feature = types_pb2.MultiModalFeature(modality="audio", identifier=name, hash=name, num_embeds=1500)
        return tokenizer_pb2.SpeechPiece(
            start_s=PIECE_S * place,
            duration_s=PIECE_S,
            token_ids=pack_u32([*f"<{_NAMES[request.task]}>{text}".encode()]),
            language_index=1 if is_detected else None,
            mm_features=[feature],
        )


def says(words):
    """Return the reply of an engine that writes `words` after each piece: a dict from a piece's text to ids or text."""

    def reply(prompt, position):
        text = bytes(prompt).decode("latin-1")
        if text == DETECTION:
            return GERMAN
        written = words[text.partition(">")[2]]
        ids = [*written.encode()] if isinstance(written, str) else written
        return ids[position] if position < len(ids) else 257

    return reply
