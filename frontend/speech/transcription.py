"""Transcription: joins the outputs of a recording's pieces. All pieces run at the same time; their texts come in order."""

import math
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.output_stream import OutputStream
from tetrad.frontend.media.speech import PreparedSpeech, SpeechPiece
from tetrad.frontend.net.together import all_of
from tetrad.frontend.request.outputs import CompletionOutput, FinishReasonName, RequestOutput
from tetrad.frontend.speech.joined_text import JoinedText
from tetrad.frontend.speech.segments import Segment, split_at_times
from tetrad.frontend.speech.word_times import WordFinder
from tetrad.frontend.speech.words import Word

_TIMESTAMP = re.compile(r"<\|\d+\.\d\d\|>")
"""Text of Whisper's timestamps, which are no special tokens: a model may write some although its prompt asks for none."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A new part of a transcription.

    Attributes:
        piece: index of the piece that it belongs to.
        text: more of the text.
        segments: the piece's segments, with the last part of a piece.
        words: the piece's words, likewise.
        output: the tokens behind it.
    """

    piece: int
    text: str
    segments: list[Segment]
    words: list[Word]
    output: RequestOutput


class Transcription:
    """The running requests of one recording. Iterate over it once; close it at the end.

    Args:
        llm: the model.
        speech: the prepared recording, whose language is known.
        streams: the outputs of its pieces.
        words: finds the words of segments.
        with_segments: see SpeechOptions.
        written_language: code of the text's language.

    Attributes:
        duration_s: length of the recording.
        language: code of the spoken language; empty: unknown.
        finish_reason: "stop", or else the reason of the first piece that ended otherwise; set at the end.
    """

    def __init__(
        self,
        llm: AsyncLLM,
        speech: PreparedSpeech,
        streams: Sequence[OutputStream],
        words: WordFinder,
        *,
        with_segments: bool,
        written_language: str,
    ) -> None:
        self._llm, self._speech, self._streams = llm, speech, streams
        self._words, self._with_segments = words, with_segments
        self._joined = JoinedText(written_language)
        self.duration_s, self.language = speech.duration_s, speech.language
        self.finish_reason: FinishReasonName = "stop"

    async def __aiter__(self) -> AsyncIterator[Progress]:
        """Yield the parts of the text, in order."""
        for place, stream in enumerate(self._streams):
            read = _Tokens()
            async for output in stream:
                read.take_silence(output)
                for new in output.outputs:
                    yield Progress(place, *await self._part(place, new, read), output)

    def start_of(self, piece: int) -> float:
        """Return the start of a piece in the recording, in seconds."""
        return self._speech.pieces[piece].start_s

    def close(self) -> None:
        """Abort the pieces that are not finished."""
        for stream in self._streams:
            stream.close()
        self._words.close()

    async def _part(self, place: int, new: CompletionOutput, read: "_Tokens") -> tuple[str, list[Segment], list[Word]]:
        """Return the new text, segments and words of a piece."""
        if new.finish_reason not in (None, "stop") and self.finish_reason == "stop":
            self.finish_reason = new.finish_reason
        if not self._with_segments:
            return self._joined.add(place, _TIMESTAMP.sub("", new.text)), [], []
        read.add(new)
        if new.finish_reason is None:
            return "", [], []
        piece = self._speech.pieces[place]
        segments = await self._segments(piece, read)
        words = await self._words.of(place, piece, read.token_ids, segments)
        return "".join(self._joined.add(place, each.text) for each in segments), segments, words

    async def _segments(self, piece: SpeechPiece, read: "_Tokens") -> list[Segment]:
        speech = self._speech
        found = split_at_times(
            read.token_ids,
            read.logprobs,
            first_timestamp_id=speech.first_timestamp_id,
            step_s=speech.timestamp_step_s,
            start_s=piece.start_s,
            duration_s=piece.duration_s,
            ends=self._llm.tokenizer_info.eos_token_ids,
        )
        texts = await all_of(self._llm.texts.detokenize(each.token_ids) for each in found)
        return [each.of_piece(text, read.no_speech_prob) for each, text in zip(found, texts, strict=True)]


@dataclass(slots=True)
class _Tokens:
    """The tokens of a piece so far, and the probability that nobody speaks in it."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    no_speech_prob: float | None = None

    def take_silence(self, output: RequestOutput) -> None:
        """Store the probability of silence, which one output of the piece has if it was requested."""
        if (scores := output.prompt_token_id_logprobs) is not None:
            self.no_speech_prob = math.exp(float(scores[0, 0]))

    def add(self, new: CompletionOutput) -> None:
        self.token_ids += new.token_ids
        positions = new.logprobs or []
        self.logprobs += [position[token_id].logprob for token_id, position in zip(new.token_ids, positions, strict=True)]
