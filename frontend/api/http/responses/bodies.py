"""Bodies of the Responses API, in OpenAI's field names, with vLLM's additions. Checks the form only; items.py and tools.py
interpret it.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from tetrad.frontend.api.http.responses.encrypted_content import ENCRYPTED_CONTENT
from tetrad.frontend.api.http.schemas.fields import Body, Integer, Strings
from tetrad.frontend.api.http.schemas.generation_fields import StreamOptions
from tetrad.frontend.api.http.turns.sampling import TurnSampling
from tetrad.services.errors import InvalidRequest

LOGPROBS = "message.output_text.logprobs"

_INSTEAD = {
    "conversation": "use previous_response_id",
    "previous_response": "use previous_response_id, or send its items in input",
    "previous_input_messages": "send them in input",
    "prompt": "write it into input",
}
"""Unsupported field -> what to do instead. If one were ignored, the model would answer without the earlier turns."""

MetadataKey = Annotated[str, StringConstraints(max_length=64)]
MetadataValue = Annotated[str, StringConstraints(max_length=512)]


def _as_parts(value: object) -> object:
    """Return a text as a list of one text part; any other value unchanged."""
    return [{"type": "input_text", "text": value}] if isinstance(value, str) else value


def _as_items(value: object) -> object:
    """Return a text as a list of one user message; any other value unchanged."""
    return [{"type": "message", "role": "user", "content": value}] if isinstance(value, str) else value


class InputAudio(Body):
    """Audio as a file."""

    data: str | None = Field(None, description="The file in base64.")
    format: str | None = Field(None, description="Such as `wav` or `mp3`; the file itself says what it is.")


class MediaUrl(Body):
    """Where a file is."""

    url: str | None = Field(None, description="A data: URL in base64, or another URL that the server may fetch.")
    uuid: str | None = Field(None, description="The client's name of the file, which may stand for it later.")


class ContentPart(Body):
    """A part of a message, of a tool's output, or of reasoning."""

    type: str = Field(
        description="`input_text`, `input_image`, `input_audio`, `audio_url` or `video_url` (of users, and of outputs of "
        "functions), `output_text`, `refusal`, `reasoning_text` or `summary_text`; others are refused."
    )
    text: str | None = Field(None, description="The text.")
    image_url: str | None = Field(
        None, description="input_image: a data: URL in base64, or another URL that the server may fetch."
    )
    detail: str | None = Field(None, description="input_image: accepted without effect; see mm_processor_kwargs.")
    input_audio: InputAudio | None = Field(None, description="input_audio: the file.")
    audio_url: str | MediaUrl | None = Field(None, description="audio_url: where the file is.")
    video_url: str | MediaUrl | None = Field(
        None, description="video_url: where the file is; a data:video/jpeg;base64, URL may have frames, separated by commas."
    )
    uuid: str | None = Field(None, description="The client's name of an image, audio or video, which may stand for it later.")
    file_id: str | None = Field(None, description="Not supported: this server stores no files.")
    refusal: str | None = Field(None, description="refusal: its text.")


Parts = Annotated[list[ContentPart] | None, BeforeValidator(_as_parts, json_schema_input_type=str | list[ContentPart] | None)]


class InputItem(Body):
    """An item of the conversation. Its fields depend on its type."""

    type: str | None = Field(
        None,
        description="`message` (also if there is none, but a role), `function_call`, `function_call_output`, "
        "`custom_tool_call`, `custom_tool_call_output`, `reasoning` or `item_reference`; others are refused.",
    )
    id: str | None = Field(None, description="The item's id. item_reference: of the item that is meant.")
    status: str | None = Field(
        None,
        description="`completed`, `incomplete` or `in_progress`. A last message of the assistant not completed is continued; "
        "an incomplete call without output is left out.",
    )
    role: str | None = Field(None, description="message: `user`, `assistant`, `system` or `developer`.")
    content: Parts = Field(None, description="message: what is said, a text or parts. reasoning: what the model thought.")
    summary: list[ContentPart] | None = Field(None, description="reasoning: read if there is no content.")
    call_id: str | None = Field(
        None, description="Calls and their outputs: name of the call. An output with a `name` may have none."
    )
    name: str | None = Field(None, description="function_call, custom_tool_call: the function or the tool called.")
    namespace: str | None = Field(None, description="Calls: the namespace of the function or tool, if it has one.")
    encrypted_content: str | None = Field(
        None, description="reasoning: read if there is no content and this server made it; that of others is left out."
    )
    arguments: str | None = Field(None, description="function_call: its arguments as JSON text.")
    input: str | None = Field(None, description="custom_tool_call: the input of the tool.")
    output: Parts = Field(None, description="Outputs of calls: what the function or the tool said, a text or parts.")


class CustomFormat(Body):
    """The form of a custom tool's input."""

    type: Literal["text", "grammar"] = Field(description="text: any. grammar: what `definition` describes.")
    syntax: Literal["lark", "regex"] | None = Field(None, description="grammar: the notation of the definition.")
    definition: str | None = Field(
        None,
        description="grammar: a grammar in Lark's notation, without recursive rules and without `%ignore`; or a regular "
        "expression of the whole input.",
    )


class FunctionBody(Body):
    """A function or a custom tool that the model may call."""

    type: str = Field(description="`function`, or `custom`: a tool whose input is a text.")
    name: str | None = Field(None, description="What the model calls it: up to 64 letters, digits, `_` and `-`.")
    description: str | None = Field(None, description="What it is for. The model does not see that of a namespace.")
    parameters: dict[str, Any] | None = Field(None, description="JSON schema of the arguments, an object.")
    strict: bool | None = Field(
        None, description="Hold the arguments to the schema even when the model is free to call or not. Unset: false."
    )
    format: CustomFormat | None = Field(
        None, description="custom: the form of the input. Unset: text. A grammar needs a model whose calls can be strict."
    )


class ToolBody(FunctionBody):
    """A function, a custom tool, or a group of them."""

    type: str = Field(
        description="`function`, `custom`, or `namespace`: functions under a common name. Tools that OpenAI's servers run are "
        "refused; only `web_search` is left out beside functions, as Codex always sends it."
    )
    tools: list[FunctionBody] | None = Field(None, description="namespace: its functions; the model sees NAMESPACE__NAME.")


class AllowedTool(Body):
    """A tool that may be called now."""

    type: str = Field(description="`function` or `custom`.")
    name: str | None = Field(None, description="Of the function or the tool.")


class ToolChoiceBody(Body):
    """The choice of tools to call."""

    type: str = Field(description="`function`, `custom`: that one is called. `allowed_tools`: only those may be.")
    name: str | None = Field(None, description="function, custom: the one that must be called.")
    mode: Literal["auto", "required"] | None = Field(
        None, description="allowed_tools: whether one of them must be called. Unset: auto."
    )
    tools: list[AllowedTool] | None = Field(None, description="allowed_tools: those that may be called.")


class TextFormat(Body):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"] = Field(description="text: any. The others: JSON.")
    name: str | None = Field(None, description="json_schema: its name; not used.")
    description: str | None = Field(None, description="json_schema: what it is for; not used.")
    schema_: dict[str, Any] | None = Field(None, alias="schema", description="json_schema: what the answer satisfies.")
    strict: bool | None = Field(
        None, description="json_schema: objects have no properties but those listed. Answers always satisfy the schema."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.type == "json_schema" and self.schema_ is None:
            raise ValueError("a format of type json_schema needs a schema")
        return self


class TextConfig(Body):
    """Format of the answer's text."""

    format: TextFormat | None = Field(None, description="The form of the answer. Unset: text.")
    verbosity: Literal["low", "medium", "high"] | None = Field(None, description="Accepted; models have no such choice.")


class ReasoningConfig(Body):
    """Settings of the model's reasoning."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = Field(
        None,
        description="How hard, for templates that know efforts. none switches it off where the template can, others on.",
    )
    summary: Literal["auto", "concise", "detailed"] | None = Field(
        None, description="Accepted; reasoning is not summarized but sent as it is."
    )


class InputBody(Body):
    """Common fields of creating and counting."""

    model: str | None = Field(None, description="A name that /v1/models lists. Unset: the first model.")
    input: Annotated[list[InputItem], BeforeValidator(_as_items, json_schema_input_type=str | list[InputItem])] = Field(
        min_length=1, description="What is answered: a text, or items: messages, function calls and their outputs, reasoning."
    )
    instructions: str | None = Field(
        None, description="The system prompt. Instructions of earlier responses are not carried over."
    )
    previous_response_id: str | None = Field(None, description="The stored response that this one continues.")
    tools: list[ToolBody] | None = Field(None, description="Functions that the model may call.")
    tool_choice: Literal["none", "auto", "required"] | ToolChoiceBody | None = Field(
        None, description="Whether and which tools are called. Unset: auto."
    )
    parallel_tool_calls: bool | None = Field(None, description="Let the model make several calls at once. Unset: true.")
    reasoning: ReasoningConfig | None = Field(None, description="How the model thinks.")
    text: TextConfig | None = Field(None, description="What the text of the answer is like.")
    truncation: Literal["auto", "disabled"] | None = Field(
        None, description="auto: drop the oldest turns of a conversation that does not fit. disabled (default): refuse it."
    )
    chat_template: str | None = Field(None, description="Jinja template of the conversation, instead of the model's.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Further variables for the template.")
    mm_processor_kwargs: dict[str, Any] | None = Field(
        None, description="Settings of the model's image processor, such as {min_pixels, max_pixels} or {size}."
    )
    media_io_kwargs: dict[str, Any] | None = Field(
        None, description="How files are read, as in chat completions: {video: {num_frames, fps}}."
    )
    conversation: Any = Field(None, description="Not supported: use previous_response_id.")
    previous_response: Any = Field(None, description="Not supported: use previous_response_id, or send its items in input.")
    previous_input_messages: Any = Field(None, description="Not supported: send them in input.")
    prompt: Any = Field(None, description="Not supported: prompt templates are stored at OpenAI.")

    @model_validator(mode="after")
    def _check_unsupported(self) -> Self:
        for name, instead in _INSTEAD.items():
            if getattr(self, name) is not None:
                raise InvalidRequest(f"{name} is not supported: {instead}.", field=name)
        return self


class InputTokensRequest(InputBody):
    """POST /v1/responses/input_tokens."""


class ResponsesRequest(InputBody, TurnSampling):
    """POST /v1/responses."""

    max_output_tokens: Integer | None = Field(
        None, ge=1, description="Maximum number of tokens to generate, reasoning included. Unset: the rest of the context."
    )
    max_tool_calls: Integer | None = Field(None, ge=1, description="Accepted; limits tools that OpenAI's servers run.")
    top_logprobs: Integer | None = Field(
        None, ge=0, le=20, description=f"Log-probabilities of so many likely tokens a position; `include` must list {LOGPROBS}."
    )
    include: Strings | None = Field(
        None,
        description=f"What else to send. {LOGPROBS}: log-probabilities of the text. {ENCRYPTED_CONTENT}: reasoning in "
        "a form that clients which store nothing send back. Others are accepted.",
    )
    stop: str | Strings | None = Field(None, description="Strings that end the answer.")
    stream: bool | None = Field(None, description="Send the response as events, as it is generated.")
    stream_options: StreamOptions | None = Field(None, description="Accepted; events are not obfuscated.")
    store: bool | None = Field(None, description="Keep the response, to be read or continued later. Unset: true.")
    background: bool | None = Field(None, description="Answer at once and generate later; needs `store`.")
    metadata: dict[MetadataKey, MetadataValue] | None = Field(
        None, max_length=16, description="Up to 16 pairs that are kept with the response."
    )
    user: str | None = Field(None, description="Whom it is for; sent back.")
    safety_identifier: str | None = Field(None, max_length=128, description="Likewise.")
    prompt_cache_key: str | None = Field(None, description="Sent back; prompts are cached by their tokens. See cache_salt.")
    service_tier: str | None = Field(None, description="Accepted; there is one tier.")
    enable_response_messages: bool | None = Field(None, description="Not supported: the answer has items, no messages.")

    @model_validator(mode="after")
    def _check_response(self) -> Self:
        if self.enable_response_messages:
            text = "enable_response_messages is not supported: the answer has items, no messages."
            raise InvalidRequest(text, field="enable_response_messages")
        if self.background and self.store is False:
            raise InvalidRequest("background can only be used when `store` is true.", field="background")
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("Stream options can only be defined when `stream=True`.", field="stream_options")
        return self
