"""Scale-out bodies: the bodies of rendering, of generation from token ids, and of aborts, in vLLM's field names."""

from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from tetrad.frontend.api.http.chat.bodies import ChatCompletionRequest
from tetrad.frontend.api.http.completions.bodies import CompletionRequest
from tetrad.frontend.api.http.messages.bodies import MessagesRequest
from tetrad.frontend.api.http.responses.bodies import ResponsesRequest
from tetrad.frontend.api.http.schemas.fields import Body, Number, Strings, TokenIds
from tetrad.frontend.api.http.schemas.generation_fields import RepetitionDetectionBody, StreamOptions
from tetrad.frontend.api.http.schemas.sampling_fields import StructuredOutputsBody
from tetrad.services.errors import InvalidRequest

_OFFSETS = "Not supported: tokenizers here return no offsets."
_PAYLOAD = "Accepted without effect: prompts are text."


class RenderCompletionRequest(CompletionRequest):
    """The body of POST /v1/completions/render."""

    return_token_offsets: bool | None = Field(None, description=_OFFSETS)
    mm_payload: Literal["tensors", "none"] | None = Field(None, description=_PAYLOAD)

    @model_validator(mode="after")
    def _check_render(self) -> Self:
        _refuse(self, "return_token_offsets", "prompt_embeds", "echo")
        if self.best_of is not None and self.best_of > (self.n or 1):
            raise _not_rendered("best_of")
        return self


class RenderChatRequest(ChatCompletionRequest):
    """The body of POST /v1/chat/completions/render."""

    return_token_offsets: bool | None = Field(None, description=_OFFSETS)
    mm_payload: Literal["tensors", "none"] | None = Field(None, description=_PAYLOAD)

    @model_validator(mode="after")
    def _check_render(self) -> Self:
        _refuse(self, "return_token_offsets", "prediction")
        return self


class RenderMessagesRequest(MessagesRequest):
    """The body of POST /v1/messages/render."""

    mm_payload: Literal["tensors", "none"] | None = Field(None, description=_PAYLOAD)


class RenderResponsesRequest(ResponsesRequest):
    """The body of POST /v1/responses/render."""

    mm_payload: Literal["tensors", "none"] | None = Field(None, description=_PAYLOAD)

    @model_validator(mode="after")
    def _check_render(self) -> Self:
        _refuse(self, "background")
        return self


class ReasoningParserKwargs(Body):
    """The options with which the prompt was rendered."""

    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict, description="Variables that the chat template had.")


class SamplingParamsBody(Body):
    """vLLM's SamplingParams as JSON. Parameters without a field here, all with plain values, are extra fields."""

    model_config = ConfigDict(extra="allow")

    structured_outputs: StructuredOutputsBody | None = Field(None, description="Constrains the output.")
    repetition_detection: RepetitionDetectionBody | None = Field(
        None, description="End outputs that repeat themselves, with finish_reason repetition."
    )


class TokensRequest(Body):
    """The body of POST /inference/v1/generate: one prompt as token ids."""

    request_id: str | None = Field(
        None, description="Names the request, in its id and in logs. Unset: as the X-Request-Id header says."
    )
    token_ids: TokenIds = Field(min_length=1, description="The prompt.")
    sampling_params: SamplingParamsBody = Field(
        description="vLLM's SamplingParams by their names, as `temperature`, `max_tokens`, `seed`, `stop`, `logprobs` and"
        " `structured_outputs`. Unset max_tokens: as many as the context has room for. Unknown names are refused."
    )
    model: str | None = Field(None, description="A name that /v1/models lists. Unset: the first model.")
    output_mode: Literal["tokens", "text"] = Field(
        "tokens", description="tokens: choices have token ids; text: they have their text, too, and log-probabilities by text."
    )
    stream: bool | None = Field(False, description="Send the answer as server-sent events while it is generated.")
    stream_options: StreamOptions | None = Field(None, description="What the stream says besides its deltas; needs stream.")
    return_token_ids: bool | None = Field(None, description="Return the ids of the prompt as well; in a stream, once.")
    reasoning_ended: bool | None = Field(
        None,
        description="Whether the reasoning is over where the prompt ends: a constraint holds from the first token then."
        " False: it is open. Unset: the prompt is read to find out.",
    )
    reasoning_parser_kwargs: ReasoningParserKwargs | None = Field(
        None, description="Accepted without effect: the prompt itself says whether its reasoning is open."
    )
    token_offsets: list[tuple[int, int]] | None = Field(None, description="Accepted without effect, as by vLLM.")
    cache_salt: str | None = Field(
        None,
        min_length=1,
        description="Requests share cached prefixes only with those of the same salt; 1 to 128 characters. Unset: no salt.",
    )
    priority: Number = Field(0, description="Larger is more urgent, where the server schedules by priority.")
    features: dict[str, Any] | None = Field(None, description="Not supported: prompts are text.")
    content_parts: list[dict[str, Any]] | None = Field(None, description="Not supported: prompts are text.")
    kv_transfer_params: dict[str, Any] | None = Field(
        None,
        description="For routers, as in vLLM: what the engine core does with the prompt's KV blocks for another one. Needs"
        " engine cores with --kv-role.",
    )
    ec_transfer_params: dict[str, Any] | None = Field(None, description="Not supported: no encoder connector is configured.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("features", "content_parts", "ec_transfer_params"):
            if getattr(self, name):
                raise InvalidRequest(f"{name} is not supported by this server.", field=name)
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("Stream options can only be defined when `stream=True`.", field="stream_options")
        return self


class AbortRequest(Body):
    """The body of POST /inference/v1/abort_requests."""

    request_ids: Strings = Field(description="Ids that answers of /inference/v1/generate have. Others are ignored.")


def _refuse(body: Body, *names: str) -> None:
    for name in names:
        if getattr(body, name):
            raise _not_rendered(name)


def _not_rendered(name: str) -> InvalidRequest:
    return InvalidRequest(f"{name} is not supported by the render endpoint.", field=name)
