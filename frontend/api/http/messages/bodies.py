"""Bodies of the Messages API, in Anthropic's field names, with vLLM's additions. Checks the form only; blocks.py
interprets it.
"""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from tetrad.frontend.api.http.messages.errors import ThreadUnsupported
from tetrad.frontend.api.http.schemas.fields import Body, Flag, Integer, Strings, Text
from tetrad.frontend.api.http.turns.sampling import TurnSampling
from tetrad.services.errors import InvalidRequest

_TOOL_NAME = r"^[a-zA-Z0-9_-]{1,128}$"


def _as_blocks(value: object) -> object:
    """Return a text as a list of one text block; any other value unchanged."""
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


class ImageSource(Body):
    """An image, or where it is."""

    type: str = Field(description="`base64`, or `url` where the server may fetch it; others (`file`) are refused.")
    media_type: str | None = Field(None, description="base64: as `image/png`.")
    data: str | None = Field(None, description="base64: the file.")
    url: str | None = Field(None, description="url: a data:, http: or https: URL.")


class TypedBlock(Body):
    """A block whose fields depend on its type."""

    types: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _keep_type(cls, value: object) -> object:
        """Drop the fields of a block of another type: blocks.py refuses the type, whatever forms its fields have."""
        kind = value.get("type") if isinstance(value, dict) else None
        return {"type": kind} if isinstance(kind, str) and kind not in cls.types else value


class ResultBlock(TypedBlock):
    """A part of a tool's result."""

    types = ("text", "image")

    type: str = Field(description="`text` or `image`; other types are refused.")
    text: str | None = Field(None, description="text: the text.")
    source: ImageSource | None = Field(None, description="image: the image.")


class ContentBlock(TypedBlock):
    """A part of a message. Its fields depend on its type."""

    types = ("text", "image", "tool_use", "tool_result", "thinking", "redacted_thinking")

    type: str = Field(
        description="`text`, `image` (of users), `tool_use`, `tool_result`, `thinking` or `redacted_thinking`; others "
        "(`document`) are refused."
    )
    text: str | None = Field(None, description="text: the text.")
    source: ImageSource | None = Field(None, description="image: the image.")
    id: str | None = Field(None, description="tool_use: name of this call, which its result repeats.")
    name: str | None = Field(None, description="tool_use: the function called.")
    input: dict[str, Any] | None = Field(None, description="tool_use: the arguments.")
    tool_use_id: str | None = Field(None, description="tool_result: the call that this is the result of.")
    content: Annotated[
        list[ResultBlock] | None, BeforeValidator(_as_blocks, json_schema_input_type=str | list[ResultBlock] | None)
    ] = Field(None, description="tool_result: what the tool said: a text or blocks.")
    is_error: bool | None = Field(None, description="tool_result: the tool failed.")
    thinking: str | None = Field(None, description="thinking: what the model thought.")
    signature: str | None = Field(None, description="thinking: as it was sent; not checked.")
    data: str | None = Field(None, description="redacted_thinking: cannot be read, and is left out.")


Blocks = Annotated[list[ContentBlock], BeforeValidator(_as_blocks, json_schema_input_type=str | list[ContentBlock])]


class MessageBody(Body):
    """One turn of the conversation."""

    role: Literal["user", "assistant", "system"] = Field(description="Role of the speaker.")
    content: Blocks = Field(description="What is said: a text or blocks.")


class ToolBody(Body):
    """A function that the model may call."""

    type: str | None = Field(None, description="`custom` or nothing; tools that Anthropic defines are refused.")
    name: str = Field(pattern=_TOOL_NAME, description="What the model calls it: up to 128 letters, digits, `_` and `-`.")
    description: Text = Field("", description="What it is for.")
    input_schema: dict[str, Any] | None = Field(None, description="JSON schema of the arguments, an object.")
    strict: Flag = Field(False, description="Hold the arguments to the schema even when the model is free to call or not.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.type not in (None, "custom"):
            raise ValueError(f"tools of type {self.type!r} are not supported, only custom tools with an input_schema")
        if self.input_schema is None:
            raise ValueError("input_schema is missing")
        return self


class ToolChoiceBody(Body):
    """The choice of tools to call."""

    type: Literal["auto", "any", "tool", "none"] = Field(
        description="auto: as the model sees fit; any: at least one; tool: the one called `name`; none: none."
    )
    name: str | None = Field(None, description="The tool that must be called.")
    disable_parallel_tool_use: Flag = Field(False, description="At most one call in a turn.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.type == "tool" and not self.name:
            raise ValueError("a tool_choice of type `tool` needs the name of the tool")
        return self


class ThinkingBody(Body):
    """Whether the model thinks before it answers, if its template has this choice."""

    type: Literal["enabled", "disabled", "adaptive"] = Field(description="adaptive: as the model does by itself.")
    budget_tokens: Integer | None = Field(
        None, ge=1, le=2**31 - 1, description="Maximum number of thinking tokens, if the model thinks; less than max_tokens."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.type == "enabled" and self.budget_tokens is None:
            raise ValueError("thinking of type `enabled` needs budget_tokens")
        return self


class OutputFormat(Body):
    """The form of the answer."""

    type: Literal["json_schema"] = Field(description="The answer is JSON.")
    schema_: dict[str, Any] = Field(alias="schema", description="What it satisfies.")


class OutputConfig(Body):
    """Format of the answer."""

    effort: str | None = Field(None, description="How hard to think, for templates that know efforts: low, medium, high, ...")
    format: OutputFormat | None = Field(None, description="The form of the answer. Unset: text.")


class Metadata(Body):
    """Facts about the request."""

    user_id: str | None = Field(None, description="Whom it is for; not used.")


class ConversationBody(Body):
    """Common fields of creating and counting."""

    model: str | None = Field(None, description="A name that /v1/models lists. Unset: the first model.")
    messages: list[MessageBody] = Field(
        min_length=1, description="The conversation so far. A last turn of the assistant is continued."
    )
    system: Blocks | None = Field(None, description="The system prompt: a text or blocks.")
    tools: list[ToolBody] | None = Field(None, description="Functions that the model may call.")
    tool_choice: ToolChoiceBody | None = Field(None, description="Whether it calls them. Unset: auto.")
    thinking: ThinkingBody | None = Field(None, description="Whether it thinks first. Unset: as the model does by itself.")
    output_config: OutputConfig | None = Field(None, description="What the answer is like.")
    output_format: OutputFormat | None = Field(None, description="Older name of output_config.format, which goes first.")
    chat_template: str | None = Field(None, description="Jinja template of the conversation, instead of the model's.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Further variables for the template.")
    mm_processor_kwargs: dict[str, Any] | None = Field(
        None, description="Settings of the model's image processor, such as {min_pixels, max_pixels} or {size}."
    )
    thread: Any = Field(None, description="Not supported: send the whole conversation each time.")
    mcp_servers: list[Any] | None = Field(None, description="Not supported: this server calls no tools; give their functions.")
    container: Any = Field(None, description="Not supported: this server runs no code.")

    @model_validator(mode="after")
    def _check_thread(self) -> Self:
        # If the field were ignored, the model would answer the last turn without the earlier ones.
        if self.thread is not None:
            text = "thread is not supported: this server holds no conversations; send all messages each time."
            raise ThreadUnsupported(text, field="thread")
        return self

    @model_validator(mode="after")
    def _check_hosted(self) -> Self:
        if self.mcp_servers:
            text = "mcp_servers is not supported: this server calls no tools. Give their functions as tools."
            raise InvalidRequest(text, field="mcp_servers")
        if self.container:
            raise InvalidRequest("container is not supported: this server runs no code.", field="container")
        return self

    @model_validator(mode="after")
    def _check_tools(self) -> Self:
        choice = self.tool_choice
        if choice is not None and choice.type in ("any", "tool") and not self.tools:
            raise InvalidRequest(f"tool_choice of type {choice.type!r} needs tools.", field="tool_choice")
        names: set[str] = set()
        for tool in self.tools or ():
            if tool.name in names:
                raise InvalidRequest(f"tools: the name {tool.name!r} is used more than once.", field="tools")
            names.add(tool.name)
        return self


class CountTokensRequest(ConversationBody):
    """POST /v1/messages/count_tokens."""


class MessagesRequest(ConversationBody, TurnSampling):
    """POST /v1/messages."""

    max_tokens: Integer = Field(ge=1, description="Maximum number of tokens to generate, thinking included.")
    stop_sequences: Strings | None = Field(None, description="Strings that end the answer.")
    stream: Flag = Field(False, description="Send the answer as events, as it is generated.")
    metadata: Metadata | None = Field(None, description="Facts about the request.")
    service_tier: str | None = Field(None, description="Accepted; there is one tier.")

    @model_validator(mode="after")
    def _check_budget(self) -> Self:
        budget = None if self.thinking is None else self.thinking.budget_tokens
        if budget is not None and budget >= self.max_tokens:
            text = f"thinking.budget_tokens must be less than max_tokens={self.max_tokens}, got {budget}."
            raise InvalidRequest(text, field="thinking.budget_tokens")
        return self
