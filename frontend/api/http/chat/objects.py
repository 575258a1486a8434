"""Chat objects: the answers of /v1/chat/completions as msgspec structs, and their construction from a turn's pieces."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tetrad.frontend.api.http.schemas.objects import ChatLogprobs, KvTransferParams, Metrics, PromptLogprobs, Usage
from tetrad.frontend.parsing.elements.pieces import AssistantTurn, Content, Piece, Reasoning, ToolCallArguments, ToolCallStart

_FUNCTION: Literal["function"] = "function"
_FINISH_REASON = (
    "stop (also for a call that tool_choice names), length, tool_calls, repetition or abort; null while it goes on."
)
_STOP_REASON = "The stop string or token id that ended it; at the end of text there is none."


class FunctionDelta(msgspec.Struct, omit_defaults=True):
    """The delta of a call's function."""

    name: Annotated[str | None, Meta(description="The function; comes once.")] = None
    arguments: Annotated[str | None, Meta(description="What is new of its arguments' JSON text.")] = None


class ToolCallDelta(msgspec.Struct, omit_defaults=True):
    """The delta of a tool call; id, type and name come once."""

    index: Annotated[int, Meta(description="Which call of the message.")]
    id: Annotated[str | None, Meta(description="Names the call, which its result repeats as tool_call_id; comes once.")] = None
    type: Annotated[str | None, Meta(description="Always function; comes once.")] = None
    function: Annotated[FunctionDelta | None, Meta(description="What is new of the function called.")] = None


class Delta(msgspec.Struct, omit_defaults=True):
    """The delta of a message. `reasoning_content` is the older name of `reasoning`."""

    role: Annotated[str | None, Meta(description="Always assistant; in a choice's first chunk.")] = None
    content: Annotated[str | None, Meta(description="What is new of the answer.")] = None
    reasoning: Annotated[str | None, Meta(description="What is new of the reasoning.")] = None
    reasoning_content: Annotated[str | None, Meta(description="The same, under its older name.")] = None
    tool_calls: Annotated[list[ToolCallDelta] | None, Meta(description="What is new of calls.")] = None


class ChunkChoice(msgspec.Struct):
    """The delta of one output."""

    index: Annotated[int, Meta(description="Which of the n answers.")]
    delta: Annotated[Delta, Meta(description="What is new of the message; empty where only the end is.")]
    logprobs: Annotated[ChatLogprobs | None, Meta(description="Of the new tokens, if asked for.")] = None
    finish_reason: Annotated[str | None, Meta(description=_FINISH_REASON)] = None
    stop_reason: Annotated[int | str | UnsetType, Meta(description=_STOP_REASON)] = UNSET
    token_ids: Annotated[list[int] | UnsetType, Meta(description="Ids of the new tokens, with return_token_ids.")] = UNSET


class ChatChunk(msgspec.Struct):
    """A chunk of a chat completion."""

    id: Annotated[str, Meta(description="`chatcmpl-` and the request's id; the same in all chunks.")]
    object: Annotated[str, Meta(description="Always chat.completion.chunk.")]
    created: Annotated[int, Meta(description="When it was asked for, in Unix seconds.")]
    model: Annotated[str, Meta(description="The name that answers.")]
    choices: Annotated[list[ChunkChoice], Meta(description="One; none in the usage chunk.")]
    usage: Annotated[
        Usage | UnsetType | None,
        Meta(description="Only with stream_options.include_usage: null, and in the last chunk the tokens."),
    ] = UNSET
    prompt_token_ids: Annotated[
        list[int] | UnsetType, Meta(description="Ids of the prompt, with return_token_ids; in the first chunk.")
    ] = UNSET
    prompt_text: Annotated[
        str | UnsetType, Meta(description="Text of the prompt, with return_prompt_text; in the first chunk.")
    ] = UNSET
    kv_transfer_params: KvTransferParams = UNSET
    metrics: Metrics = UNSET


class FunctionCall(msgspec.Struct):
    """The called function, with its arguments as JSON text."""

    name: Annotated[str, Meta(description="The function.")]
    arguments: Annotated[str, Meta(description="Its arguments as JSON text.")]


class ToolCallBody(msgspec.Struct):
    """A tool call."""

    id: Annotated[str, Meta(description="Names the call; its result repeats it as tool_call_id.")]
    function: Annotated[FunctionCall, Meta(description="What was called.")]
    type: Annotated[str, Meta(description="Always function.")] = _FUNCTION


class Message(msgspec.Struct):
    """The assistant's turn. `content` is null if there are only calls or reasoning."""

    role: Annotated[str, Meta(description="Always assistant.")]
    content: Annotated[str | None, Meta(description="The answer; null where there are calls or reasoning only.")]
    refusal: Annotated[str | None, Meta(description="Always null: models here do not mark refusals.")] = None
    reasoning: Annotated[str | UnsetType, Meta(description="What the model thought, if it marked that.")] = UNSET
    reasoning_content: Annotated[str | UnsetType, Meta(description="The same, under its older name.")] = UNSET
    tool_calls: Annotated[list[ToolCallBody] | UnsetType, Meta(description="The calls, in the model's order.")] = UNSET


class ChatChoice(msgspec.Struct):
    """One answer."""

    index: Annotated[int, Meta(description="Which of the n answers.")]
    message: Annotated[Message, Meta(description="The assistant's turn.")]
    logprobs: Annotated[ChatLogprobs | None, Meta(description="Of the generated tokens, if asked for.")] = None
    finish_reason: Annotated[str | None, Meta(description=_FINISH_REASON)] = None
    stop_reason: Annotated[int | str | None, Meta(description=_STOP_REASON)] = None
    token_ids: Annotated[list[int] | UnsetType, Meta(description="Ids of the generated tokens, with return_token_ids.")] = UNSET


class ChatCompletion(msgspec.Struct):
    """A chat completion."""

    id: Annotated[str, Meta(description="`chatcmpl-` and the request's id.")]
    object: Annotated[str, Meta(description="Always chat.completion.")]
    created: Annotated[int, Meta(description="When it was asked for, in Unix seconds.")]
    model: Annotated[str, Meta(description="The name that answered.")]
    choices: Annotated[list[ChatChoice], Meta(description="The n answers.")]
    usage: Annotated[Usage, Meta(description="Tokens of the request.")]
    prompt_token_ids: Annotated[list[int] | UnsetType, Meta(description="Ids of the prompt, with return_token_ids.")] = UNSET
    prompt_text: Annotated[str | UnsetType, Meta(description="Text of the prompt, with return_prompt_text.")] = UNSET
    prompt_logprobs: Annotated[
        PromptLogprobs | UnsetType, Meta(description="For each token of the prompt, facts by token id; null for the first.")
    ] = UNSET
    kv_transfer_params: KvTransferParams = UNSET
    metrics: Metrics = UNSET


def message_of(turn: AssistantTurn, role: str, *, echoed: str = "") -> Message:
    """Return the message of a whole turn.

    Args:
        turn: the turn.
        role: role of the message.
        echoed: text before the content.
    """
    content = echoed + turn.content
    message = Message(role, content if content or not (turn.tool_calls or turn.reasoning) else None)
    if turn.reasoning:
        message.reasoning = message.reasoning_content = turn.reasoning
    if turn.tool_calls:
        message.tool_calls = [ToolCallBody(call.id, FunctionCall(call.name, call.arguments)) for call in turn.tool_calls]
    return message


def delta_of(pieces: Sequence[Piece]) -> Delta:
    """Return pieces as one delta; pieces of the same kind are joined."""
    if len(pieces) == 1 and isinstance(pieces[0], Content):
        return Delta(content=pieces[0].text)
    delta, calls = Delta(), {}
    for piece in pieces:
        match piece:
            case Reasoning(text):
                delta.reasoning = delta.reasoning_content = (delta.reasoning or "") + text
            case Content(text):
                delta.content = (delta.content or "") + text
            case ToolCallStart(index, name, call_id):
                calls[index] = ToolCallDelta(index, call_id, _FUNCTION, FunctionDelta(name, ""))
            case ToolCallArguments(index, text):
                call = calls.setdefault(index, ToolCallDelta(index, function=FunctionDelta()))
                assert call.function is not None
                call.function.arguments = (call.function.arguments or "") + text
    delta.tool_calls = list(calls.values()) or None
    return delta
