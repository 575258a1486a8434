"""Draws random requests to Whisper: recordings over HTTP and gRPC, and calls of the library with audio."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

import grpc

from tests.combinations.asked import Asked, Client, LibraryCall
from tests.combinations.drawing import MAX_TOKENS, Drawing
from tests.sounds import sound
from tests.whisper_files import LANGUAGES, NO_TIMES, PREVIOUS, START
from tetrad.frontend.request.sampling_params import RequestOutputKind
from tetrad.v1 import inference_pb2, types_pb2

_SECONDS = (0.3, 1.9, 2.0, 3.1, 6.5)
"""Lengths of the recordings; the model reads 2 s at once."""
_PART_BYTES = 50_000
_GRANULARITIES = "timestamp_granularities[]"
_MEDIA_TYPE = "audio/wav"
_TASKS = {"transcriptions": types_pb2.SPEECH_TASK_TRANSCRIBE, "translations": types_pb2.SPEECH_TASK_TRANSLATE}
_WITHOUT_SEGMENTS = ("json", "text")
_OF_HTTP_ALONE = ("srt", "vtt")


@cache
def _file(number: int) -> bytes:
    """Return one of a few recordings; the last one is cut off in its header."""
    if number == len(_SECONDS):
        return _file(0)[:40]
    return sound(_SECONDS[number], seed=number, form=("wav", "mp3", "flac")[number % 3])


@dataclass(frozen=True)
class SpeechCall:
    """A form for /v1/audio.

    Attributes:
        task: "transcriptions" or "translations".
        file: the recording.
        fields: all others of the form but `stream`.
        is_stream: whether it may be answered by a stream.
    """

    task: str
    file: bytes
    fields: Mapping[str, Any]
    is_stream: bool

    @property
    def path(self) -> str:
        return f"/v1/audio/{self.task}"

    def form(self, *, streams: bool) -> dict[str, Any]:
        """Return the arguments of an HTTP client."""
        fields = {name: str(value) for name, value in self.fields.items()} | ({"stream": "true"} if streams else {})
        return {"data": fields, "files": {"file": ("a.wav", self.file, _MEDIA_TYPE)}}

    def messages(self, request_id: str) -> Iterator[inference_pb2.TranscribeRequest]:
        """Yield the messages of a call of the gRPC API."""
        fields = dict(self.fields)
        options = inference_pb2.TranscribeOptions(
            request_id=request_id,
            task=_TASKS[self.task],
            with_segments=fields.pop("response_format") not in _WITHOUT_SEGMENTS,
            media_type=_MEDIA_TYPE,
        )
        options.with_words = fields.pop(_GRANULARITIES, None) == "word"
        options.sampling_params.max_tokens = fields.pop("max_completion_tokens")
        for name in fields.keys() & inference_pb2.TranscribeOptions.DESCRIPTOR.fields_by_name.keys():
            setattr(options, name, fields.pop(name))
        for name, value in fields.items():
            setattr(options.sampling_params, name, value)
        yield inference_pb2.TranscribeRequest(options=options)
        for start in range(0, len(self.file), _PART_BYTES):
            yield inference_pb2.TranscribeRequest(data=self.file[start : start + _PART_BYTES])

    def transcribe(self, client: Client, request_id: str, timeout_s: float | None = None) -> Any:
        """Start a call of the gRPC API, and return it."""

        async def messages() -> AsyncIterator[inference_pb2.TranscribeRequest]:
            for message in self.messages(request_id):
                yield message

        return client.grpc.Transcribe(messages(), timeout=timeout_s)

    async def answer(self, client: Client, request_id: str, kind: RequestOutputKind | None = None) -> Any:
        """Return the answer; with DELTA that of a stream, with CUMULATIVE that of the gRPC API, where it has the format."""
        form = self.fields["response_format"]
        if kind == RequestOutputKind.CUMULATIVE and form not in _OF_HTTP_ALONE:
            return await self._answer_over_grpc(client, request_id)
        if kind == RequestOutputKind.DELTA and self.is_stream and form in _WITHOUT_SEGMENTS:
            return await self._streamed(client)
        answer = await client.http.post(self.path, **self.form(streams=False))
        if answer.status_code != 200:
            return answer.json()["error"]["message"]
        if form in ("text", *_OF_HTTP_ALONE):
            return {"text": answer.text.removesuffix("\n"), "segments": [], "words": []}
        body = answer.json()
        segments = [_segment(each["start"], each["end"], each["text"], each["tokens"]) for each in body.get("segments", ())]
        words = [(each["start"], each["end"], each["word"]) for each in body.get("words", ())]
        return {"text": body["text"], "segments": segments, "words": words}

    async def _streamed(self, client: Client) -> Any:
        deltas: list[str] = []
        async with client.http.stream("POST", self.path, **self.form(streams=True)) as answer:
            if answer.status_code != 200:
                return json.loads(await answer.aread())["error"]["message"]
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    return chunk["error"]["message"]
                if chunk.get("type") == "transcript.text.done":
                    assert chunk["text"] == "".join(deltas), (chunk, deltas)
                deltas.append(chunk.get("delta", ""))
        return {"text": "".join(deltas), "segments": [], "words": []}

    async def _answer_over_grpc(self, client: Client, request_id: str) -> Any:
        try:
            messages = [message async for message in self.transcribe(client, request_id)]
        except grpc.aio.AioRpcError as error:
            return error.details()
        segments = [
            _segment(each.start_s, each.end_s, each.text, list(each.token_ids))
            for message in messages
            for each in message.segments
        ]
        words = [(each.start_s, each.end_s, each.text.strip()) for message in messages for each in message.words]
        return {"text": "".join(each.text for each in messages), "segments": segments, "words": words}


class SpeechDrawing(Drawing):
    """The source of one walk's requests to a model that transcribes."""

    def request(self) -> Asked:
        kinds = [*[self._recording] * 8, *[self._library] * 4, self._beams, self._completion, self._chat]
        return self._rng.choice(kinds)()

    def next_turn(self, call: Asked, answer: Any) -> Asked | None:
        turn = super().next_turn(call, answer)
        if not isinstance(turn, LibraryCall) or not isinstance(call, LibraryCall) or "multi_modal_data" not in call.prompt:
            return turn
        media = cast(Mapping[str, Any], call.prompt)["multi_modal_data"]
        return replace(turn, prompt={"prompt_token_ids": turn.prompt, "multi_modal_data": media})

    def _recording(self) -> SpeechCall:
        rng, task = self._rng, self._rng.choice(sorted(_TASKS))
        fields: dict[str, Any] = {
            "response_format": rng.choice(["json", "json", "text", "verbose_json", "verbose_json", "srt", "vtt"]),
            "max_completion_tokens": rng.randint(1, MAX_TOKENS),
            "seed": rng.randrange(1 << 40),
            "priority": rng.randint(-2, 2),
        }
        if fields["response_format"] == "verbose_json" and task == "transcriptions" and rng.random() < 0.6:
            fields[_GRANULARITIES] = "word"
        drawn = {
            "language": lambda: rng.choice([*LANGUAGES, "xx"]),
            "prompt": lambda: rng.choice([self._text_prompt(), "of which there are some", START]),
            "temperature": lambda: rng.choice([0.5, 1.0]),
            "top_k": lambda: rng.choice([1, 5]),
            "top_p": lambda: 0.9,
            "repetition_penalty": lambda: 1.2,
            "cache_salt": lambda: rng.choice(["one", "two"]),
        }
        fields |= {name: drawn[name]() for name in rng.sample(sorted(drawn), rng.randint(0, 4))}
        return SpeechCall(task, self._audio(), fields, is_stream=rng.random() < 0.5)

    def _library_prompt(self) -> Any:
        """Return a prompt with audio; a few have none, which is an error."""
        rng = self._rng
        if rng.random() < 0.1:
            return rng.choice([self._ids_prompt, self._text_prompt, self._embeds_prompt])()
        task = f"{START}<|{rng.choice(LANGUAGES)}|><|{rng.choice(['transcribe', 'translate'])}|>{rng.choice(['', NO_TIMES])}"
        before = rng.choice(["", f"{PREVIOUS} earlier words, of which there are some more", PREVIOUS + self._text_prompt()])
        media = {"audio": self._audio()}
        if rng.random() < 0.2:
            return {"encoder_prompt": {"prompt": "", "multi_modal_data": media}, "decoder_prompt": before + task}
        if rng.random() < 0.3:
            return {"prompt_token_ids": self._ids_prompt(), "multi_modal_data": media}
        return {"prompt": before + task + rng.choice(["", self._text_prompt()]), "multi_modal_data": media}

    def _audio(self) -> bytes:
        return _file(self._rng.choice([*range(len(_SECONDS)), *range(len(_SECONDS) + 1)]))


def _segment(start_s: float, end_s: float, text: str, token_ids: list[int]) -> dict[str, Any]:
    return {"start_s": start_s, "end_s": end_s, "text": text, "token_ids": token_ids}
