"""WordTimes: finds when the words of a piece of a recording are said, with one more request of the piece and its text.

The model reads the text again, and its cross-attention says at which position of the audio each token begins. Without words
to find, NoWordTimes asks for nothing.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.media.speech import SpeechPiece
from tetrad.frontend.net.together import all_of
from tetrad.frontend.request.admission import Ticket
from tetrad.frontend.request.new_request import RequestOptions
from tetrad.frontend.request.prompts import TokensPrompt
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams
from tetrad.frontend.speech.joined_text import WITHOUT_SPACES
from tetrad.frontend.speech.segments import Segment
from tetrad.frontend.speech.words import Word, split_words
from tetrad.services.errors import FailedPrecondition, Unsupported

_CAPABILITY = "token_times"
_POSITION_S = 0.02
"""Seconds of a position of the encoder's output."""
_ROUNDING = 1e-6


class WordFinder(Protocol):
    """Finds the words of segments."""

    async def of(self, place: int, piece: SpeechPiece, token_ids: Sequence[int], segments: Sequence[Segment]) -> list[Word]:
        """Return the words of a piece, in order.

        Args:
            place: index of the piece.
            piece: the piece.
            token_ids: the generated ids.
            segments: their segments.
        """

    def close(self) -> None:
        """Release what is reserved."""


class NoWordTimes:
    """The WordFinder of a transcription without words."""

    async def of(
        self,
        place: int,  # noqa: ARG002 - of WordFinder
        piece: SpeechPiece,  # noqa: ARG002
        token_ids: Sequence[int],  # noqa: ARG002
        segments: Sequence[Segment],  # noqa: ARG002
    ) -> list[Word]:
        """Return nothing."""
        return []

    def close(self) -> None:
        """Do nothing."""


NO_WORD_TIMES = NoWordTimes()


def check_word_times(llm: AsyncLLM) -> None:
    """Raise Unsupported if the model's engine cores do not say when tokens are said."""
    if _CAPABILITY not in llm.engine_info.capabilities:
        text = "timestamp_granularities 'word' is not supported: the engine core, or its worker, is of a release without it."
        raise Unsupported(text, field="timestamp_granularities")


class WordTimes:
    """The WordFinder of a transcription with words.

    Args:
        llm: the model.
        request_id: the transcription's id.
        options: those of the requests of its pieces.
        tickets: the shares of the limits of the requests for words, one a piece.
        language: code of the text's language.
    """

    def __init__(
        self, llm: AsyncLLM, request_id: str, options: RequestOptions, tickets: Sequence[Ticket], language: str
    ) -> None:
        self._llm, self._request_id, self._options, self._tickets = llm, request_id, options, tickets
        self._has_spaces = language not in WITHOUT_SPACES

    async def of(self, place: int, piece: SpeechPiece, token_ids: Sequence[int], segments: Sequence[Segment]) -> list[Word]:
        """See WordFinder."""
        if not segments:
            return []
        ends = await self._ends(place, piece, list(token_ids))
        found = await all_of(self._words(piece, each, ends) for each in segments)
        return [word for words in found for word in words]

    def close(self) -> None:
        """Release the shares of the requests that were not sent."""
        for ticket in self._tickets:
            ticket.release()

    async def _words(self, piece: SpeechPiece, segment: Segment, ends: Sequence[float]) -> list[Word]:
        ids, detokenize = segment.token_ids, self._llm.texts.detokenize
        prefixes = await all_of(detokenize(ids[: count + 1], skip_special_tokens=False) for count in range(len(ids)))

        def end_of(token: int) -> float:
            """Return the end of a token of the segment, counted from 0, in the recording."""
            return round(piece.start_s + ends[segment.first + token + 1], 3)

        return [
            Word(part.text, end_of(part.first - 1), end_of(part.last))
            for part in split_words(prefixes, has_spaces=self._has_spaces)
        ]

    async def _ends(self, place: int, piece: SpeechPiece, token_ids: list[int]) -> list[float]:
        """Return the end of each token in the piece, behind the end of what precedes the first one: 0."""
        end_id, prompt = self._llm.tokenizer_info.eos_token_id, piece.token_ids
        read = [each for each in token_ids if each != end_id]
        ids = [*prompt, *read, *([] if end_id is None else [end_id])][: self._llm.max_model_len - 1]
        if len(ids) < len(prompt) + 2:
            return [0.0] * (len(token_ids) + 1)
        params = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            prompt_logprob_token_ids=[0],
            prompt_logprob_start=len(prompt),
        )
        options: Any = self._options | {"audio_positions": max(1, int(piece.duration_s / _POSITION_S + _ROUNDING))}
        options |= {"ticket": self._tickets[place], "max_logprobs": 1}  # whatever the server's limit is
        given = TokensPrompt(prompt_token_ids=ids, mm_features=piece.features)
        stream = await self._llm.add_request(f"{self._request_id}-words-{place}", given, params, **options)
        try:
            scores = (await stream.get()).prompt_token_id_logprobs
        finally:
            stream.close()
        if scores is None:
            raise FailedPrecondition("The request was aborted.")
        found = [float(value) * _POSITION_S for value in scores[:, 0]]
        # Tokens without a row, at the end or beyond the context, end with the one before them.
        return [0.0, *found, *[found[-1]] * (len(token_ids) - len(found))]
