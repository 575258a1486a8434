"""SpeechAnswer: answers one request of /v1/audio, streamed or whole. Called by the router."""

import math
import time
from collections.abc import AsyncIterator
from contextlib import closing

from msgspec import UNSET, UnsetType
from starlette.responses import PlainTextResponse, Response

from tetrad.frontend.api.http.audio.bodies import TranslationForm
from tetrad.frontend.api.http.audio.objects import (
    DurationUsage,
    TextDelta,
    Transcript,
    TranscriptChoice,
    TranscriptChunk,
    TranscriptSegment,
    TranscriptWord,
    VerboseTranscript,
    segment_object,
)
from tetrad.frontend.api.http.schemas.objects import JsonResponse, UsageCount, event
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.media.speech import SpeechTask
from tetrad.frontend.speech.segments import Segment
from tetrad.frontend.speech.start import SpeechOptions, start_transcription
from tetrad.frontend.speech.subtitles import srt, vtt
from tetrad.frontend.speech.transcription import Transcription
from tetrad.services.errors import InvalidRequest

_OBJECTS = {SpeechTask.TRANSCRIBE: "transcription.chunk", SpeechTask.TRANSLATE: "translation.chunk"}
_DELTA, _DONE = "transcript.text.delta", "transcript.text.done"
_SUBTITLES = {"srt": srt, "vtt": vtt}


class SpeechAnswer:
    """One request of /v1/audio.

    Args:
        llm: the model.
        body: the form.
        request_id: the request's id.
    """

    def __init__(self, llm: AsyncLLM, body: TranslationForm, request_id: str) -> None:
        self._llm, self._body, self._request_id = llm, body, request_id
        self._model = llm.model_names.resolve(body.model)
        self._created = int(time.time())
        self._usage = UsageCount()
        self._options = SpeechOptions(
            params=body.params(llm.default_sampling_fields()),
            with_segments=body.with_segments,
            with_words=body.with_words,
            model=self._model,
            priority=body.priority,
            cache_salt=body.cache_salt,
        )

    async def answer(self) -> Response:
        """Return the whole text as a response in the form that the body names."""
        transcription = await self._start()
        texts: list[str] = []
        segments: list[Segment] = []
        words: list[TranscriptWord] = []
        objects: list[TranscriptSegment] = []
        with closing(transcription):
            async for part in transcription:
                texts.append(part.text)
                segments += part.segments
                words += [TranscriptWord(each.text.strip(), each.start_s, each.end_s) for each in part.words]
                objects += [
                    segment_object(
                        len(objects) + place,
                        each,
                        piece_start_s=transcription.start_of(part.piece),
                        temperature=self._body.temperature,
                    )
                    for place, each in enumerate(part.segments)
                ]
        text, form = "".join(texts), self._body.response_format
        if form in _SUBTITLES:
            return PlainTextResponse(_SUBTITLES[form](segments))
        if form == "text":
            return PlainTextResponse(f"{text}\n")
        usage = self._duration_usage(transcription)
        if form == "json":
            return JsonResponse(Transcript(text, usage))
        return JsonResponse(
            VerboseTranscript(
                self._body.TASK.value,
                transcription.language or None,
                transcription.duration_s,
                text,
                objects,
                words if self._body.with_words else UNSET,
                usage,
            )
        )

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the text as events."""
        transcription = await self._start()
        texts: list[str] = []
        body = self._body
        continuous = body.stream_include_usage and body.stream_continuous_usage_stats
        with closing(transcription):
            async for part in transcription:
                self._usage.add(part.piece, part.output)
                if not part.text:
                    continue
                texts.append(part.text)
                chunk = self._chunk(TranscriptChoice(TextDelta(part.text)))
                chunk.type, chunk.delta = _DELTA, part.text
                if continuous:
                    chunk.usage = self._usage.usage()
                yield event(chunk)
        chunk = self._chunk(TranscriptChoice(TextDelta(""), transcription.finish_reason))
        chunk.type, chunk.text = _DONE, "".join(texts)
        yield event(chunk)
        if body.stream_include_usage:
            chunk = self._chunk()
            chunk.usage = self._usage.usage()
            yield event(chunk)

    async def _start(self) -> Transcription:
        try:
            return await start_transcription(self._llm, self._body.recording(), self._options, f"trsc-{self._request_id}")
        except InvalidRequest as error:
            if error.field == "data":
                error.field = "file"
            raise

    def _chunk(self, *choices: TranscriptChoice) -> TranscriptChunk:
        return TranscriptChunk(f"trsc-{self._request_id}", _OBJECTS[self._body.TASK], self._created, self._model, list(choices))

    def _duration_usage(self, transcription: Transcription) -> DurationUsage | UnsetType:
        """Return the length of a transcription; a translation has none, as in OpenAI's API."""
        return DurationUsage(math.ceil(transcription.duration_s)) if self._body.TASK is SpeechTask.TRANSCRIBE else UNSET
