"""Audio objects: the answers of /v1/audio as msgspec structs."""

import zlib
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tetrad.frontend.api.http.schemas.objects import Usage
from tetrad.frontend.speech.segments import Segment


class DurationUsage(msgspec.Struct):
    """What a transcription is charged for by OpenAI."""

    seconds: Annotated[int, Meta(description="Length of the recording, rounded up.")]
    type: Annotated[str, Meta(description="Always duration.")] = "duration"


class Transcript(msgspec.Struct, omit_defaults=True):
    """The answer with response_format json."""

    text: Annotated[str, Meta(description="What is said.")]
    usage: Annotated[DurationUsage | UnsetType, Meta(description="Length of the recording; not of translations.")] = UNSET


class TranscriptSegment(msgspec.Struct):
    """A sentence or so."""

    id: Annotated[int, Meta(description="Its index.")]
    seek: Annotated[int, Meta(description="Start of its piece of the recording, in hundredths of a second.")]
    start: Annotated[float, Meta(description="Its start in the recording, in seconds.")]
    end: Annotated[float, Meta(description="Its end, in seconds.")]
    text: Annotated[str, Meta(description="What is said.")]
    tokens: Annotated[list[int], Meta(description="Ids of the text.")]
    temperature: Annotated[float, Meta(description="As requested.")]
    avg_logprob: Annotated[float, Meta(description="Average log-probability of its tokens.")]
    compression_ratio: Annotated[float, Meta(description="Bytes of the text by bytes after zlib: high if it repeats itself.")]
    no_speech_prob: Annotated[
        float | None, Meta(description="Probability that nobody speaks in its piece of the recording; null: unknown.")
    ] = None


class TranscriptWord(msgspec.Struct):
    """A word."""

    word: Annotated[str, Meta(description="What is said, with the punctuation that belongs to it.")]
    start: Annotated[float, Meta(description="Its start in the recording, in seconds.")]
    end: Annotated[float, Meta(description="Its end, in seconds.")]


class VerboseTranscript(msgspec.Struct, omit_defaults=True):
    """The answer with response_format verbose_json."""

    task: Annotated[str, Meta(description="transcribe or translate.")]
    language: Annotated[str | None, Meta(description="Code of the spoken language, as given or as the model found it.")]
    duration: Annotated[float, Meta(description="Length of the recording, in seconds.")]
    text: Annotated[str, Meta(description="What is said.")]
    segments: Annotated[list[TranscriptSegment], Meta(description="The text with its times.")]
    words: Annotated[
        list[TranscriptWord] | UnsetType, Meta(description="The words with their times, if they were requested.")
    ] = UNSET
    usage: Annotated[DurationUsage | UnsetType, Meta(description="Length of the recording; not of translations.")] = UNSET


class TextDelta(msgspec.Struct):
    """New text in vLLM's chunks."""

    content: Annotated[str, Meta(description="What is new.")]


class TranscriptChoice(msgspec.Struct):
    """The only choice of a chunk."""

    delta: Annotated[TextDelta, Meta(description="What is new.")]
    finish_reason: Annotated[str | None, Meta(description="stop, length or abort; null while it goes on.")] = None
    stop_reason: Annotated[int | str | None, Meta(description="Always null.")] = None


class TranscriptChunk(msgspec.Struct):
    """An event of a stream: OpenAI's event and vLLM's chunk in one object."""

    id: Annotated[str, Meta(description="`trsc-` and the request's id; the same in all chunks.")]
    object: Annotated[str, Meta(description="transcription.chunk or translation.chunk.")]
    created: Annotated[int, Meta(description="When it was asked for, in Unix seconds.")]
    model: Annotated[str, Meta(description="The name that answered.")]
    choices: Annotated[list[TranscriptChoice], Meta(description="One, with what is new; none in a chunk of usage alone.")]
    type: Annotated[
        str | UnsetType, Meta(description="OpenAI's name of the event: transcript.text.delta, at the end transcript.text.done.")
    ] = UNSET
    delta: Annotated[str | UnsetType, Meta(description="What is new, in a transcript.text.delta.")] = UNSET
    text: Annotated[str | UnsetType, Meta(description="The whole text, in transcript.text.done.")] = UNSET
    usage: Annotated[Usage | UnsetType, Meta(description="Tokens, with stream_include_usage.")] = UNSET


def segment_object(number: int, segment: Segment, *, piece_start_s: float, temperature: float) -> TranscriptSegment:
    """Return a segment as the object of verbose_json."""
    text = segment.text.encode()
    return TranscriptSegment(
        id=number,
        seek=round(piece_start_s * 100),
        start=segment.start_s,
        end=segment.end_s,
        text=segment.text,
        tokens=segment.token_ids,
        temperature=temperature,
        avg_logprob=segment.avg_logprob,
        compression_ratio=len(text) / len(zlib.compress(text)),
        no_speech_prob=segment.no_speech_prob,
    )
