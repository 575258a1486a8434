"""Chat bodies: the body of /v1/chat/completions, in OpenAI's and vLLM's field names.

OpenAI fields that a text model cannot serve are refused if they would change the answer, and ignored otherwise.
"""

from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from tetrad.frontend.api.http.schemas.fields import Body, Flag, Integer
from tetrad.frontend.api.http.schemas.generation_fields import SamplingBody

_TOOL_NAME = r"^[a-zA-Z0-9_-]{1,64}$"


class ChatMessage(BaseModel):
    """One turn of the conversation; further fields reach the chat template."""

    model_config = ConfigDict(extra="allow")

    role: str = Field(description="system, developer, user, assistant, tool, or another role that the chat template names.")
    content: str | list[dict[str, Any]] | None = Field(
        None,
        description="Text, or a list of parts: of type text; of type image_url (`image_url`: a URL or {url, detail, uuid}; a"
        " data: URL in base64, or another URL that the server may fetch; `uuid`: the client's name of the image, which may"
        " stand for it later), where the model takes images; of type audio_url in the same form, or input_audio"
        " (`input_audio`: {data, format}, data in base64), where it takes audio; of type video_url, where it takes videos,"
        " whose data: URL of type video/jpeg may have frames, separated by commas; of type image_embeds or audio_embeds (base64"
        " of a file of torch.save, or an object of them), or prompt_embeds (`data`: base64 of a safetensors file), where the"
        " server takes those; of type refusal, for the assistant.",
    )
    name: str | None = Field(
        None, description="Name of the speaker, for chat templates that distinguish several speakers of one role."
    )
    tool_calls: list[dict[str, Any]] | None = Field(
        None, description="Calls the assistant made: {id, type: function, function: {name, arguments}}, arguments as JSON text."
    )
    tool_call_id: str | None = Field(None, description="For role tool: the call this is the result of.")
    reasoning: str | None = Field(None, description="What the assistant thought; `reasoning_content` is taken, too.")


class PredictedPart(Body):
    """A part of an expected answer."""

    type: Literal["text"] = Field("text", description="Only text is supported.")
    text: str = Field(description="The text.")


class PredictedContent(Body):
    """An expected answer."""

    type: Literal["content"] = Field("content", description="Only content is supported.")
    content: str | list[PredictedPart] = Field(description="The text, or a list of parts of type text.")

    @property
    def text(self) -> str:
        """The whole text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ToolFunction(Body):
    """A function that the model may call."""

    name: str = Field(pattern=_TOOL_NAME, description="Letters, digits, underscores and dashes; at most 64.")
    description: str | None = Field(None, description="What it does; the model reads this to choose.")
    parameters: dict[str, Any] | None = Field(None, description="JSON schema of its arguments, an object. Unset: no arguments.")
    strict: bool | None = Field(
        None, description="Hold the arguments to the schema even while the model is free to call or not."
    )


class ToolBody(Body):
    """A tool."""

    type: Literal["function"] = Field("function", description="Only functions are supported.")
    function: ToolFunction = Field(description="The function.")


class FunctionName(Body):
    """The name of a function."""

    name: str = Field(description="The function's name.")


class NamedToolChoice(Body):
    """A tool choice that forces a call of one function."""

    type: Literal["function"] = Field("function", description="Always function.")
    function: FunctionName = Field(description="The function to call.")


class AllowedTools(Body):
    """The tools that may be called."""

    mode: Literal["auto", "required"] = Field(description="Whether one of them may or must be called.")
    tools: list[NamedToolChoice] = Field(min_length=1, description="The functions; the others are hidden from the model.")


class AllowedToolsChoice(Body):
    """A tool choice that restricts the tools of this request."""

    type: Literal["allowed_tools"] = Field(description="Always allowed_tools.")
    allowed_tools: AllowedTools = Field(description="What may be called.")


class ChatCompletionRequest(SamplingBody):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage] = Field(description="The conversation so far, oldest turn first.")
    max_completion_tokens: Integer | None = Field(
        None,
        ge=1,
        description="Maximum number of tokens to generate, reasoning included. Unset: max_tokens, or the rest of the context.",
    )
    logprobs: bool | None = Field(False, description="Return the log-probability of each token of the answer.")
    top_logprobs: Integer | None = Field(
        None, description="Also return this many of the most likely tokens at each position; 0 to 20, needs logprobs."
    )

    tools: list[ToolBody] | None = Field(None, description="Functions the model may call.")
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | AllowedToolsChoice | None = Field(
        None,
        description="none: no calls, and the tools are hidden from the model; auto (the default with tools): the model decides;"
        " required: at least one call; or the function that must be called.",
    )
    parallel_tool_calls: bool | None = Field(True, description="Let the model make several calls in one turn.")

    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = Field(
        None,
        description="How much to think, for chat templates that read `reasoning_effort`. none also switches the thinking of"
        " hybrid models off, other values switch it on (`enable_thinking` and `thinking` in the template).",
    )
    include_reasoning: Flag = Field(True, description="Return the reasoning of models that mark it.")

    return_prompt_text: bool | None = Field(None, description="Return the prompt that the template makes of the conversation.")
    echo: Flag = Field(False, description="Begin the answer with the last message's text, if that is the assistant's.")
    add_generation_prompt: bool | None = Field(
        None, description="End the prompt with the opening of an assistant's turn. Unset: unless the last message is continued."
    )
    continue_final_message: Flag = Field(False, description="Let the model continue the last message instead of answering it.")
    add_special_tokens: Flag = Field(False, description="Let the tokenizer add BOS and the like on top of the chat template.")
    documents: list[dict[str, Any]] | None = Field(
        None, description="Documents for chat templates of retrieval models, usually {title, text}."
    )
    chat_template: str | None = Field(None, description="A Jinja chat template to use instead of the model's.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Further variables for the chat template.")
    mm_processor_kwargs: dict[str, Any] | None = Field(
        None,
        description="Settings of the model's processors of media for this request, such as {min_pixels, max_pixels} or {size}.",
    )
    media_io_kwargs: dict[str, Any] | None = Field(
        None,
        description="How files are read: {video: {num_frames, fps}}, the most frames of a video, and for each second. For"
        " videos sent as frames {video: {fps, frames_indices, total_num_frames, duration}}, of the video that they are from.",
    )

    modalities: list[str] | None = Field(None, description="Only ['text'] is supported.")
    audio: dict[str, Any] | None = Field(None, description="Not supported: answers are text.")
    web_search_options: dict[str, Any] | None = Field(None, description="Not supported.")
    prompt_embeds: Any = Field(None, description="Not supported: use a part of type prompt_embeds in a message.")
    functions: list[dict[str, Any]] | None = Field(None, description="Not supported: use tools.")
    function_call: str | dict[str, Any] | None = Field(None, description="Not supported: use tool_choice.")
    prediction: PredictedContent | None = Field(
        None,
        description="Text expected as the answer, as in an edit of a file: where it comes true, the answer is faster.",
    )
    store: bool | None = Field(None, description="Accepted without effect: chat completions are not stored.")
    metadata: dict[str, Any] | None = Field(None, description="Accepted without effect.")
    service_tier: str | None = Field(None, description="Accepted without effect.")
    verbosity: str | None = Field(None, description="Accepted without effect.")
    safety_identifier: str | None = Field(None, description="Accepted without effect.")
    prompt_cache_key: str | None = Field(None, description="Accepted without effect: prefixes are cached by their content.")
    prompt_cache_retention: str | None = Field(None, description="Accepted without effect.")

    @field_validator("tool_choice", mode="wrap")
    @classmethod
    def _check_tool_choice(cls, value: object, handler: ValidatorFunctionWrapHandler) -> object:
        try:
            return handler(value)
        except ValidationError:
            # The errors of a union's branches do not help clients.
            text = (
                'must be "none", "auto", "required", {"type": "function", "function": {"name": ...}}'
                ' or {"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}}'
            )
            raise ValueError(text) from None

    @model_validator(mode="after")
    def _check_chat(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("when using `top_logprobs`, `logprobs` must be set to true.")
        # Programs that add tools as they find them send an empty list with their usual "auto".
        has_none = self.tools is None if self.tool_choice == "auto" else not self.tools
        if self.tool_choice not in (None, "none") and has_none:
            raise ValueError("When using `tool_choice`, `tools` must be set.")
        if self.functions is not None or self.function_call is not None:
            raise ValueError("`functions` and `function_call` are not supported; use `tools` and `tool_choice`.")
        if self.modalities is not None and self.modalities != ["text"]:
            raise ValueError(f"modalities must be ['text']: answers are text, got {self.modalities}.")
        if self.audio is not None:
            raise ValueError("audio is not supported: answers are text.")
        if self.prompt_embeds is not None:
            raise ValueError("prompt_embeds is not supported for chats: use a part of type prompt_embeds in a message.")
        if self.web_search_options is not None:
            raise ValueError("web_search_options is not supported: this server does not search the web.")
        return self
