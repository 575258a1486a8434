"""Transcribe of the public gRPC API: reads the parts of a recording, then writes the parts of its text."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import closing

from tetrad.frontend.api.grpc.sampling_fields import params_fields_of
from tetrad.frontend.api.http.requests.body import BodyBudget, BodyShare
from tetrad.frontend.engine.wire import FINISH_REASON_TO_WIRE
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.model_directory import ModelDirectory
from tetrad.frontend.media.speech import Recording, SpeechTask
from tetrad.frontend.request.deadlines import earliest_deadline, within
from tetrad.frontend.request.outputs import RequestOutput
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.frontend.speech.segments import Segment
from tetrad.frontend.speech.start import SpeechOptions, start_transcription
from tetrad.frontend.speech.words import Word
from tetrad.services.errors import DeadlineExceeded, InvalidRequest
from tetrad.v1 import inference_pb2, types_pb2

_TASKS = {
    types_pb2.SPEECH_TASK_UNSPECIFIED: SpeechTask.TRANSCRIBE,
    types_pb2.SPEECH_TASK_TRANSCRIBE: SpeechTask.TRANSCRIBE,
    types_pb2.SPEECH_TASK_TRANSLATE: SpeechTask.TRANSLATE,
}
_OPTIONS = "options"
_PART_TIMEOUT_S = 30.0
"""Maximum seconds between two messages of an upload."""

Requests = AsyncIterator[inference_pb2.TranscribeRequest]


class SpeechCalls:
    """Answers the calls of models that transcribe.

    Args:
        models: the served models.
        max_upload_bytes: maximum size of all files that are being received.
    """

    def __init__(self, models: ModelDirectory, max_upload_bytes: int) -> None:
        self._models = models
        self._uploads = BodyBudget(max_upload_bytes)

    async def options(self, requests: Requests) -> inference_pb2.TranscribeOptions:
        """Return the options in the first message of a call; InvalidRequest if it has none."""
        async with within(earliest_deadline(None)):
            first = await _next(requests)
        if first is None or first.WhichOneof("part") != _OPTIONS:
            raise InvalidRequest("The first message must have options.", field=_OPTIONS)
        return first.options

    async def answers(
        self, options: inference_pb2.TranscribeOptions, requests: Requests, request_id: str
    ) -> AsyncGenerator[inference_pb2.TranscribeResponse, None]:
        """Yield the messages of a transcription.

        Args:
            options: the options.
            requests: the messages of the call after that with the options.
            request_id: the request's id.
        """
        llm = self._models.find(options.model)
        llm.model_names.resolve(options.model)
        task = _TASKS.get(options.task)
        if task is None:
            raise InvalidRequest(f"There is no task {options.task}.", field="task")
        llm.recordings.check_task(task)
        speech_options = _speech_options(llm, options)
        with self._uploads.open() as share:
            data = await _upload(llm, requests, share)
            transcription = await start_transcription(llm, _recording(options, task, data), speech_options, request_id)
        summary = inference_pb2.SpeechSummary(duration_s=transcription.duration_s, language=transcription.language)
        usage = _Usage()
        with closing(transcription):
            yield inference_pb2.TranscribeResponse(summary=summary, request_id=request_id)
            async for part in transcription:
                usage.add(part.piece, part.output)
                if part.text or part.segments:
                    segments, words = map(_encode_segment, part.segments), map(_encode_word, part.words)
                    yield inference_pb2.TranscribeResponse(
                        text=part.text, segments=segments, words=words, request_id=request_id
                    )
        finish = FINISH_REASON_TO_WIRE[transcription.finish_reason]
        yield inference_pb2.TranscribeResponse(finish_reason=finish, usage=usage.message(), request_id=request_id)


class _Usage:
    """The tokens of a call's pieces."""

    def __init__(self) -> None:
        self._prompts: dict[int, tuple[int, int]] = {}
        self._num_tokens = 0

    def add(self, piece: int, output: RequestOutput) -> None:
        self._prompts[piece] = (len(output.prompt_token_ids), output.num_cached_tokens or 0)
        self._num_tokens += sum(len(each.token_ids) for each in output.outputs)

    def message(self) -> inference_pb2.Usage:
        prompts = self._prompts.values()
        return inference_pb2.Usage(
            prompt_tokens=sum(number for number, _ in prompts),
            cached_tokens=sum(cached for _, cached in prompts),
            completion_tokens=self._num_tokens,
        )


def _speech_options(llm: AsyncLLM, options: inference_pb2.TranscribeOptions) -> SpeechOptions:
    if options.with_words and not options.with_segments:
        raise InvalidRequest("with_words needs with_segments.", field="with_words")
    # As over HTTP, the text does not depend on chance unless the caller asks for it.
    fixed = {"temperature": 0.0, "max_tokens": None}
    return SpeechOptions(
        params=SamplingParams(**{**llm.default_sampling_fields(), **fixed, **params_fields_of(options.sampling_params)}),
        with_segments=options.with_segments,
        with_words=options.with_words,
        model=options.model,
        priority=options.priority,
        cache_salt=options.cache_salt,
    )


def _recording(options: inference_pb2.TranscribeOptions, task: SpeechTask, data: bytes) -> Recording:
    return Recording(
        data=data,
        media_type=options.media_type,
        task=task,
        language=options.language,
        to_language=options.to_language,
        prompt=options.prompt,
        with_timestamps=options.with_segments,
    )


async def _upload(llm: AsyncLLM, requests: Requests, share: BodyShare) -> bytes:
    """Return the file in the messages of a call."""
    data = bytearray()
    async with within(earliest_deadline(None)):
        while (request := await _next(requests)) is not None:
            if request.WhichOneof("part") == _OPTIONS:
                raise InvalidRequest("Only the first message may have options.", field=_OPTIONS)
            share.take(len(request.data))
            data += request.data
            llm.recordings.check_size(len(data) or 1)
    return bytes(data)


async def _next(requests: Requests) -> inference_pb2.TranscribeRequest | None:
    """Return the next message of an upload; None at its end."""
    try:
        async with asyncio.timeout(_PART_TIMEOUT_S):
            return await anext(requests, None)
    except TimeoutError:
        raise DeadlineExceeded(f"No part of the file came for {_PART_TIMEOUT_S:g} s; send it faster.") from None


def _encode_segment(segment: Segment) -> inference_pb2.TranscriptSegment:
    return inference_pb2.TranscriptSegment(
        start_s=segment.start_s,
        end_s=segment.end_s,
        text=segment.text,
        token_ids=segment.token_ids,
        avg_logprob=segment.avg_logprob,
        no_speech_prob=segment.no_speech_prob,
    )


def _encode_word(word: Word) -> inference_pb2.TranscriptWord:
    return inference_pb2.TranscriptWord(start_s=word.start_s, end_s=word.end_s, text=word.text)
