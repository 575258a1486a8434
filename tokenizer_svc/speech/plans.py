"""Plans: what is asked of a recording, and how a model's prompts ask it. Values, and the interface of the families."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from tetrad.tokenizer_svc.media.items import PlacedMedia, ProcessedItem

Task = Literal["transcribe", "translate"]


@dataclass(frozen=True)
class SpeechRequest:
    """A recording, and what is asked of it.

    Attributes:
        data: the file.
        media_type: as "audio/mpeg"; empty: unknown. It is only named in errors.
        task: what is made of it.
        language: code of the spoken language; empty: unknown.
        to_language: code of the text's language; empty: English for a translation, else the spoken language.
        prompt: text before the recording; empty: none.
        with_timestamps: let the model write the times of its sentences.
    """

    data: bytes = field(repr=False)
    media_type: str = ""
    task: Task = "transcribe"
    language: str = ""
    to_language: str = ""
    prompt: str = ""
    with_timestamps: bool = False


@dataclass(frozen=True)
class Detection:
    """How a model finds the language: the likeliest of these tokens after a prompt with the first piece.

    Attributes:
        prompt_token_ids: ids of the prompt.
        languages: code of each language by the id of its token.
    """

    prompt_token_ids: Sequence[int]
    languages: dict[int, str]


@dataclass(frozen=True)
class WritingRules:
    """What the model may write about a piece.

    Attributes:
        suppressed_ids: ids that are never written.
        suppressed_first_ids: ids that are not written first.
        max_initial_timestamp: largest first timestamp, counted from the timestamp 0.
    """

    suppressed_ids: Sequence[int] = ()
    suppressed_first_ids: Sequence[int] = ()
    max_initial_timestamp: int = 0


@dataclass(frozen=True)
class Silence:
    """Where a model says that nobody speaks in a piece: the probability of a token behind the prompt's token at `position`."""

    token_id: int
    position: int


@dataclass(frozen=True)
class PromptPlan:
    """How the prompts of a recording's pieces are made.

    Attributes:
        place: returns the ids of a piece's prompt, and the piece in it; it gets the piece and its identifier.
        language: code of the spoken language; empty: unknown.
        detection: how to find the language; None: it is known, or the prompts do not need it.
        language_index: where the token of a language is to be inserted into the ids; None: nowhere.
        first_timestamp_id: id of the timestamp of a piece's beginning; None: the model writes no times.
        timestamp_step_s: seconds between two neighbouring timestamps.
        rules: what the model may write; None: anything.
        silence: where the model says that nobody speaks; None: nowhere.
    """

    place: Callable[[ProcessedItem, str], tuple[list[int], PlacedMedia]]
    language: str = ""
    detection: Detection | None = None
    language_index: int | None = None
    first_timestamp_id: int | None = None
    timestamp_step_s: float = 0.0
    rules: WritingRules | None = None
    silence: Silence | None = None


class SpeechPrompts(Protocol):
    """The prompts of a family of models.

    Attributes:
        tasks: what its models make of recordings.
    """

    tasks: Sequence[Task]

    def plan(self, request: SpeechRequest) -> PromptPlan:
        """Return how the prompts for a recording are made. Raises InvalidRequest for what the model cannot do."""
