"""Audio bodies: the forms of /v1/audio/transcriptions and /v1/audio/translations, in OpenAI's and vLLM's field names."""

import json
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from tetrad.frontend.api.http.requests.form import UploadField
from tetrad.frontend.api.http.schemas.fields import Body, Integer, Number
from tetrad.frontend.media.speech import Recording, SpeechTask
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.frontend.request.sampling_values import EXTRA_ARGS, VllmXargs
from tetrad.services.errors import InvalidRequest

Format = Literal["json", "text", "srt", "verbose_json", "vtt"]
_WORD = "word"
_GRANULARITIES = ("segment", _WORD)
_WITH_SEGMENTS = ("srt", "verbose_json", "vtt")
_SAMPLING = ("top_p", "top_k", "min_p", "seed", "frequency_penalty", "repetition_penalty", "presence_penalty")


class TranslationForm(Body):
    """POST /v1/audio/translations."""

    file: UploadField = Field(description="The recording: wav, mp3, flac, ogg, m4a or webm.")
    model: str | None = Field(None, description="A name that /v1/models lists. Unset: the first model.")
    prompt: str = Field("", description="Text that came before the recording: its style and its names are continued.")
    response_format: Format = Field(
        "json",
        description="json: {text, usage}; text: the text alone; verbose_json: segments with their times as well; srt, vtt:"
        " subtitles.",
    )
    language: str = Field("", description="The language that is spoken, as an ISO 639-1 code. Unset: the model finds it.")
    to_language: str = Field("", description="The language of the text, as such a code, where the model has a choice.")
    stream: bool = Field(False, description="Send the text as server-sent events while it is generated; json and text only.")
    stream_include_usage: bool = Field(False, description="Send one more event before [DONE] that has the usage in tokens.")
    stream_continuous_usage_stats: bool = Field(
        False, description="Send the usage so far with every event, too; needs stream_include_usage."
    )
    temperature: float = Field(0.0, description="0 takes the most likely token, more is more random; 0 to 2.")
    top_p: float | None = Field(None, description="Draw from the most likely tokens that together have this probability.")
    top_k: Integer | None = Field(None, description="Draw from this many most likely tokens; 0 or -1: from all.")
    min_p: float | None = Field(None, description="Drop tokens less likely than this times the most likely one; 0 to 1.")
    seed: Integer | None = Field(None, description="Makes draws repeatable. Unset: a random one.")
    frequency_penalty: float | None = Field(None, description="As in chats; -2 to 2.")
    repetition_penalty: float | None = Field(None, description="Above 1 makes tokens of the text so far less likely.")
    presence_penalty: float | None = Field(None, description="As in chats; -2 to 2.")
    max_completion_tokens: Integer | None = Field(
        None, description="Maximum number of tokens of each piece of the recording. Unset: as many as the model writes."
    )
    vllm_xargs: str = Field("", description="JSON object: values for the server's custom logits processors.")
    priority: Number = Field(0, description="Larger is more urgent, where the server schedules by priority.")
    request_id: str | None = Field(
        None, description="Names the request, in its id and in logs. Unset: as the X-Request-Id header says."
    )
    cache_salt: str = Field("", max_length=128, description="Requests share cached prefixes only with those of the same salt.")

    use_beam_search: bool = Field(False, description="Not supported: true is refused.")
    hotwords: str = Field("", description="Not supported: give names in the prompt.")

    TASK: ClassVar[SpeechTask] = SpeechTask.TRANSLATE
    REFUSED: ClassVar[tuple[str, ...]] = ("use_beam_search", "hotwords")

    @field_validator("response_format", mode="before")
    @classmethod
    def _check_format(cls, value: object) -> object:
        if value == "diarized_json":
            text = "response_format diarized_json is not supported: no model tells speakers apart."
            raise InvalidRequest(text, field="response_format")
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in self.REFUSED:
            if getattr(self, name):
                raise InvalidRequest(f"{name} is not supported by this server.", field=name)
        if self.stream and self.with_segments:
            text = f"{self.response_format} format doesn't support streaming case: its segments are known at the end."
            raise InvalidRequest(text, field="response_format")
        if not self.stream and (self.stream_include_usage or self.stream_continuous_usage_stats):
            raise InvalidRequest("Stream options can only be defined when `stream=True`.", field="stream_include_usage")
        return self

    @property
    def with_segments(self) -> bool:
        """Whether the answer has segments."""
        return self.response_format in _WITH_SEGMENTS

    @property
    def with_words(self) -> bool:
        """Whether the answer has words with their times."""
        return False

    def recording(self) -> Recording:
        """Return the recording."""
        return Recording(
            data=self.file.data,
            media_type=self.file.media_type,
            task=self.TASK,
            language=self.language,
            to_language=self.to_language,
            prompt=self.prompt,
            with_timestamps=self.with_segments,
        )

    def params(self, defaults: dict[str, Any]) -> SamplingParams:
        """Return the sampling parameters; `defaults` are the model authors'."""
        given = {name: value for name in _SAMPLING if (value := getattr(self, name)) is not None}
        given |= {"temperature": self.temperature, "max_tokens": self.max_completion_tokens}
        if self.vllm_xargs:
            given[EXTRA_ARGS] = VllmXargs(self._xargs())
        return SamplingParams(**{**defaults, **given})

    def _xargs(self) -> dict[str, Any]:
        try:
            found = json.loads(self.vllm_xargs)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise InvalidRequest("vllm_xargs must be a JSON object.", field="vllm_xargs")
        return found


class TranscriptionForm(TranslationForm):
    """POST /v1/audio/transcriptions."""

    timestamp_granularities: list[str] = Field(
        default_factory=list, description="With verbose_json: `segment`, which is always sent, and `word`."
    )
    chunking_strategy: str | None = Field(
        None, description="`auto`: long recordings are always cut where they are quiet. Other strategies are not supported."
    )
    include: list[str] = Field(default_factory=list, description="Not supported: `logprobs` is refused.")
    known_speaker_names: list[str] = Field(default_factory=list, description="Not supported.")
    known_speaker_references: list[str] = Field(default_factory=list, description="Not supported.")

    TASK: ClassVar[SpeechTask] = SpeechTask.TRANSCRIBE
    REFUSED: ClassVar[tuple[str, ...]] = (
        *TranslationForm.REFUSED,
        "include",
        "known_speaker_names",
        "known_speaker_references",
    )

    @property
    def with_words(self) -> bool:
        """Whether the answer has words with their times."""
        return _WORD in self.timestamp_granularities

    @model_validator(mode="after")
    def _check_more(self) -> Self:
        name = "timestamp_granularities"
        other = next((each for each in self.timestamp_granularities if each not in _GRANULARITIES), None)
        if other is not None:
            raise InvalidRequest(f"{name} {other[:32]!r} is not supported, only 'segment' and 'word'.", field=name)
        if self.timestamp_granularities and self.response_format != "verbose_json":
            raise InvalidRequest(f"{name} needs response_format verbose_json, got {self.response_format}.", field=name)
        if self.chunking_strategy not in (None, "auto"):
            text = f"chunking_strategy {self.chunking_strategy[:64]!r} is not supported, only 'auto'."
            raise InvalidRequest(text, field="chunking_strategy")
        return self
