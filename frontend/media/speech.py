"""Speech: a recording of speech, before and after the tokenizer has prepared it for a model. Values only."""

from dataclasses import dataclass, field
from enum import Enum

from tetrad.frontend.media.features import MediaFeature


class SpeechTask(Enum):
    """What is made of a recording; the values are vLLM's words."""

    TRANSCRIBE = "transcribe"
    TRANSLATE = "translate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A recording, and what is asked of it.

    Attributes:
        data: the file.
        media_type: as "audio/mpeg"; empty: unknown.
        task: what is made of it.
        language: the spoken language, an ISO 639-1 code; empty: unknown.
        to_language: the language of the text; empty: English for a translation, else the spoken language.
        prompt: the text before the recording; empty: none.
        with_timestamps: let the model write the times of its sentences.
    """

    data: bytes = field(repr=False)
    media_type: str = ""
    task: SpeechTask = SpeechTask.TRANSCRIBE
    language: str = ""
    to_language: str = ""
    prompt: str = ""
    with_timestamps: bool = False


@dataclass(frozen=True, slots=True)
class LanguageDetection:
    """How a model finds the language of a recording: the likeliest of some tokens after a prompt with the first piece.

    Attributes:
        prompt_token_ids: the ids of the prompt.
        languages: the code of each language by the id of its token.
    """

    prompt_token_ids: list[int]
    languages: dict[int, str]


@dataclass(frozen=True, slots=True)
class SpeechPiece:
    """A piece of a recording that the model reads at once.

    Attributes:
        start_s: its start in the recording.
        duration_s: its length.
        token_ids: the ids of its prompt.
        language_index: where the token of the detected language is to be inserted into the ids; None: nowhere.
        features: the preprocessed piece.
    """

    start_s: float
    duration_s: float
    token_ids: list[int] = field(repr=False)
    language_index: int | None
    features: tuple[MediaFeature, ...]


@dataclass(frozen=True, slots=True)
class SpeechRules:
    """What a model may write about a recording; the worker applies it.

    Attributes:
        suppressed_ids: ids that are never written.
        suppressed_first_ids: ids that are not written first.
        first_timestamp_id: id of the timestamp 0; None: there are no rules for timestamps.
        max_initial_timestamp: largest first timestamp, counted from `first_timestamp_id`.
        written_before: a sentence that begins before this timestamp has text.
    """

    suppressed_ids: tuple[int, ...] = ()
    suppressed_first_ids: tuple[int, ...] = ()
    first_timestamp_id: int | None = None
    max_initial_timestamp: int = 0
    written_before: int = 0


@dataclass(frozen=True, slots=True)
class Silence:
    """Where a model says that nobody speaks in a piece: the probability of a token behind the prompt's token at `position`."""

    token_id: int
    position: int


@dataclass(frozen=True, slots=True)
class PreparedSpeech:
    """A recording as the model reads it.

    Attributes:
        duration_s: length of the recording.
        language: code of the spoken language; empty: unknown.
        detection: how to find the language; None: it is known, or the prompts do not need it.
        first_timestamp_id: id of the token of a piece's beginning; each following id is `timestamp_step_s` later. None: the
            model writes no times.
        timestamp_step_s: see `first_timestamp_id`.
        pieces: the pieces, in order; at least one.
        rules: what the model may write; None: anything.
        silence: where the model says that nobody speaks; None: nowhere.
    """

    duration_s: float
    language: str
    detection: LanguageDetection | None
    first_timestamp_id: int | None
    timestamp_step_s: float
    pieces: tuple[SpeechPiece, ...]
    rules: SpeechRules | None = None
    silence: Silence | None = None
