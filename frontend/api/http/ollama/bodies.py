"""Bodies of Ollama's API. Checks the form; sampling.py and conversations.py interpret it.

Unsupported fields and options are refused if they would change the answer.
"""

import re
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from tetrad.frontend.api.http.schemas.fields import Body, Flag, Integer, Strings
from tetrad.services.errors import InvalidRequest

_NO_TIME = re.compile(r"0+(\.0*)?(ns|us|ms|s|m|h)?")
_NOT_SUPPORTED = (
    *("num_keep", "tfs_z", "typical_p", "mirostat", "mirostat_tau", "mirostat_eta", "penalize_newline"),
    *("numa", "num_batch", "num_gpu", "main_gpu", "low_vram", "f16_kv", "logits_all", "vocab_only", "use_mmap", "use_mlock"),
    *("embedding_only", "num_thread", "draft_num_predict"),
)


class OptionsBody(Body):
    """The sampling options. Options of loading are refused: the server decides them."""

    temperature: float | None = Field(None, description="0 takes the most likely token. Unset: the model's own default, or 1.")
    top_k: Integer | None = Field(None, description="Draw from this many most likely tokens; 0: from all.")
    top_p: float | None = Field(None, description="Draw from the most likely tokens that together have this probability.")
    min_p: float | None = Field(None, description="Drop tokens less likely than this times the most likely one; 0 to 1.")
    seed: Integer | None = Field(None, description="Makes draws repeatable. Unset: a random one.")
    stop: str | Strings | None = Field(None, description="Strings that end the answer; they are not part of it.")
    num_predict: Integer | None = Field(
        None, description="Maximum number of tokens to generate. -1, -2 or unset: up to the context length."
    )
    num_ctx: Integer | None = Field(
        None, ge=1, description="Context length that is needed; refused if the server's is shorter. It does not shorten it."
    )
    repeat_penalty: float | None = Field(
        None, description="Above 1 makes tokens of the prompt and the answer so far less likely. Unset: the model's own, or 1."
    )
    repeat_last_n: Integer | None = Field(
        None, description="Tokens that repeat_penalty looks back on: -1, all of them, is the only value that is served."
    )
    presence_penalty: float | None = Field(None, description="Taken off the logit of each token of the answer so far; -2 to 2.")
    frequency_penalty: float | None = Field(
        None, description="Taken off the logit of each token as often as the answer has it so far; -2 to 2."
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, given: object) -> object:
        if isinstance(given, dict):
            name = next((name for name in _NOT_SUPPORTED if given.get(name) is not None), None)
            if name is not None:
                raise InvalidRequest(f"options.{name} is not supported by this server.", field=f"options.{name}")
        return given

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.repeat_last_n not in (None, -1):
            text = f"options.repeat_last_n must be -1: repeat_penalty looks back on all tokens, got {self.repeat_last_n}."
            raise InvalidRequest(text, field="options.repeat_last_n")
        if self.num_predict is not None and self.num_predict < 1 and self.num_predict not in (-1, -2):
            text = f"options.num_predict must be at least 1, or -1 for no limit, got {self.num_predict}."
            raise InvalidRequest(text, field="options.num_predict")
        return self


class ModelBody(Body):
    """Common fields of all requests to a model."""

    model: str | None = Field(None, description="A name that /api/tags lists; `:latest` is ignored. Unset: the first of them.")
    options: OptionsBody | None = Field(None, description="How to sample.")
    keep_alive: float | str | None = Field(
        None, description="How long the model stays loaded. It always does, so 0, which asks to unload it, is refused."
    )

    @model_validator(mode="after")
    def _check_keep_alive(self) -> Self:
        given = self.keep_alive
        if given is not None and (given == 0 or (isinstance(given, str) and _NO_TIME.fullmatch(given.strip()))):
            text = f"keep_alive={given!r} asks to unload the model; this server keeps its model loaded."
            raise InvalidRequest(text, field="keep_alive")
        return self


class GeneratingBody(ModelBody):
    """Common fields of /api/generate and /api/chat."""

    stream: bool | None = Field(None, description="Send the answer line by line, as it is generated. Unset: true.")
    format: Literal["", "json"] | dict[str, Any] | None = Field(
        None, description="json: the answer is a JSON object; a JSON schema: it satisfies that."
    )
    think: bool | Literal["low", "medium", "high"] | None = Field(
        None,
        description="Whether, or how hard, to think first; for models that mark reasoning. Unset: as the model does.",
    )
    logprobs: Flag = Field(False, description="Return the log-probability of each token.")
    top_logprobs: Integer | None = Field(
        None, ge=0, description="Also return this many of the most likely tokens at each position."
    )

    @model_validator(mode="after")
    def _check_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs to be true.", field="top_logprobs")
        return self

    @property
    def streams(self) -> bool:
        """Whether the answer is sent line by line."""
        return self.stream is not False


class GenerateRequest(GeneratingBody):
    """POST /api/generate."""

    prompt: str | None = Field(None, description="What to answer. Empty: nothing is generated; the model is loaded already.")
    system: str | None = Field(None, description="The system prompt.")
    raw: Flag = Field(False, description="Continue the prompt as it is, without the model's chat template.")
    suffix: str | None = Field(None, description="Not supported: nothing can be inserted before a given end.")
    images: Strings | None = Field(None, description="Images that the prompt is about, each a file in base64.")
    template: str | None = Field(None, description="Not supported: the model's own chat template is used.")
    context: list[int] | None = Field(None, description="Not supported: send the conversation to /api/chat.")
    width: Integer | None = Field(None, description="Not supported: answers are text.")
    height: Integer | None = Field(None, description="Not supported: answers are text.")
    steps: Integer | None = Field(None, description="Not supported: answers are text.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("suffix", "template", "context", "width", "height", "steps"):
            if getattr(self, name):
                about = "" if name != "context" else ": send the conversation to /api/chat"
                raise InvalidRequest(f"{name} is not supported by this server{about}.", field=name)
        if self.raw and self.system:
            raise InvalidRequest("system is not part of a raw prompt: write it into the prompt.", field="system")
        if self.raw and self.think:
            raise InvalidRequest("think is not supported with raw: a raw prompt has no chat template.", field="think")
        return self


class FunctionCallBody(Body):
    """A function that was called."""

    name: str = Field(description="The function.")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Its arguments.")


class ToolCallBody(Body):
    """A call that the assistant made."""

    id: str | None = Field(None, description="Names the call. Unset: a number.")
    function: FunctionCallBody = Field(description="What was called.")


class MessageBody(Body):
    """One turn of the conversation."""

    role: Literal["system", "user", "assistant", "tool"] = Field(description="Role of the speaker.")
    content: str | None = Field(None, description="What is said.")
    thinking: str | None = Field(None, description="What the assistant thought.")
    images: Strings | None = Field(None, description="Images that come before the content, each a file in base64.")
    tool_calls: list[ToolCallBody] | None = Field(None, description="Calls that the assistant made.")
    tool_name: str | None = Field(None, description="For role tool: the function whose result this is.")
    tool_call_id: str | None = Field(None, description="For role tool: the call that this is the result of.")


class FunctionBody(Body):
    """A function that the model may call."""

    name: str = Field(min_length=1, description="What the model calls it.")
    description: str | None = Field(None, description="What it does; the model reads this to choose.")
    parameters: dict[str, Any] | None = Field(None, description="JSON schema of its arguments, an object.")


class ToolBody(Body):
    """A tool."""

    type: Literal["function"] | None = Field("function", description="Only functions are supported.")
    function: FunctionBody = Field(description="The function.")


class ChatRequest(GeneratingBody):
    """POST /api/chat."""

    messages: list[MessageBody] | None = Field(
        None, description="The conversation so far. Empty: nothing is generated; the model is loaded already."
    )
    tools: list[ToolBody] | None = Field(None, description="Functions that the model may call.")


class EmbedRequest(ModelBody):
    """POST /api/embed."""

    input: str | Strings = Field(description="A text, or several.")
    truncate: bool | None = Field(
        None, description="Cut texts that are longer than the context. Unset: true. false: refuse them."
    )
    dimensions: Integer | None = Field(None, ge=1, description="Length of the embeddings, for models that can shorten them.")


class EmbeddingsRequest(ModelBody):
    """POST /api/embeddings, the older form of /api/embed."""

    prompt: str = Field(description="The text.")


class ShowRequest(Body):
    """POST /api/show."""

    model: str | None = Field(None, description="A name that /api/tags lists. Unset: the first of them.")
    name: str | None = Field(None, description="The same, under its older name.")
    verbose: Flag = Field(False, description="Accepted without effect: all facts are shown.")
