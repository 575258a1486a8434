"""Blocks: converts the blocks of the Messages API to a conversation. Pure; knows no requests.

Anthropic's turns contain parts that are separate messages in OpenAI's form: results of tools are blocks of the user's turn,
calls are blocks of the assistant's. Consecutive turns of one role are merged.
"""

import json
from collections.abc import Sequence
from typing import Any

from tetrad.frontend.api.http.messages.bodies import (
    ContentBlock,
    ConversationBody,
    MessageBody,
    ResultBlock,
    ToolBody,
    ToolChoiceBody,
)
from tetrad.frontend.api.http.messages.images import image_of
from tetrad.frontend.api.http.schemas.fields import required
from tetrad.frontend.api.http.turns.media_contents import content_of, joined_contents, text_and_media
from tetrad.frontend.chat.conversation import Conversation, NamedTool, ToolChoice, thinking_kwargs
from tetrad.frontend.media.items import MediaSource
from tetrad.frontend.parsing.elements.interface import Tool
from tetrad.services.errors import InvalidRequest

Message = dict[str, Any]

_BILLING = "x-anthropic-billing-header"
"""The start of a block that Claude Code sends before its system prompt. It differs between requests and is not for models;
in the prompt, it would prevent all hits in the prefix cache.
"""


def conversation_of(body: ConversationBody) -> Conversation:
    """Return the conversation of a body; InvalidRequest names the invalid block."""
    messages = _system(body.system or ())
    continues = _is_continued(body.messages[-1])
    # Id of a call -> name of the function: results have the id only.
    calls: dict[str, str] = {}
    for place, turn in enumerate(body.messages):
        for message in _messages(f"messages.{place}", turn, calls):
            _append(messages, message)
    choice = body.tool_choice
    return Conversation(
        messages,
        tools=[_tool(tool) for tool in body.tools or ()],
        tool_choice=_tool_choice(choice),
        parallel_tool_calls=choice is None or not choice.disable_parallel_tool_use,
        chat_template=body.chat_template,
        chat_template_kwargs=_template_kwargs(body) or None,
        add_generation_prompt=not continues,
        continue_final_message=continues,
        mm_processor_kwargs=body.mm_processor_kwargs,
    )


def _system(blocks: Sequence[ContentBlock], path: str = "system") -> list[Message]:
    texts = [_text(f"{path}.{place}", block) for place, block in enumerate(blocks)]
    kept = [text for text in texts if text and not text.startswith(_BILLING)]
    return [{"role": "system", "content": "\n".join(kept)}] if kept else []


def _messages(path: str, turn: MessageBody, calls: dict[str, str]) -> list[Message]:
    if turn.role == "assistant":
        return [_assistant(path, turn.content, calls)]
    if turn.role == "system":
        return _system(turn.content, f"{path}.content")
    results: list[Message] = []
    said: list[str | MediaSource] = []
    seen: list[dict[str, Any]] = []
    for place, block in enumerate(turn.content):
        where = f"{path}.content.{place}"
        if block.type == "tool_result":
            result, images = _tool_result(where, block, calls)
            results.append(result)
            seen += images
        else:
            said.append(image_of(where, block) or _text(where, block))
    spoken = [{"role": turn.role, "content": content_of(said)}] if said or not results else []
    # Few templates read images of tools, so the user shows them.
    shown = [{"role": turn.role, "content": seen}] if seen else []
    # Results first: they belong to the calls of the previous turn.
    return results + shown + spoken


def _assistant(path: str, blocks: Sequence[ContentBlock], calls: dict[str, str]) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    tool_calls: list[Message] = []
    for place, block in enumerate(blocks):
        where = f"{path}.content.{place}"
        match block.type:
            case "thinking":
                thoughts.append(required(where, "thinking", block.thinking))
            case "redacted_thinking":
                pass
            case "tool_use":
                tool_calls.append(_tool_call(where, block))
                calls[tool_calls[-1]["id"]] = tool_calls[-1]["function"]["name"]
            case _:
                texts.append(_text(where, block))
    message: Message = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if tool_calls:
        message["tool_calls"] = tool_calls
    return message


def _tool_call(path: str, block: ContentBlock) -> Message:
    name, call_id = required(path, "name", block.name), required(path, "id", block.id)
    arguments = json.dumps(block.input or {}, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _tool_result(path: str, block: ContentBlock, calls: dict[str, str]) -> tuple[Message, list[dict[str, Any]]]:
    """Return the message of a result, and the parts of its images."""
    call_id = required(path, "tool_use_id", block.tool_use_id)
    if call_id not in calls:
        text = f"{path}.tool_use_id: {call_id!r:.64} is the id of no tool_use block in a turn before."
        raise InvalidRequest(text, field=f"{path}.tool_use_id")
    parts = ((f"{path}.content.{place}", each) for place, each in enumerate(block.content or ()))
    text, images = text_and_media(content_of(image_of(where, each) or _text(where, each) for where, each in parts))
    content = text or ("The tool failed." if block.is_error else "")
    return {"role": "tool", "tool_call_id": call_id, "name": calls[call_id], "content": content}, images


def _append(messages: list[Message], message: Message) -> None:
    """Append a message, or merge it with the last one if both have the same role."""
    role = message["role"]
    last = messages[-1] if messages else None
    if last is None or last["role"] != role or role in ("tool", "system"):
        messages.append(message)
        return
    last["content"] = joined_contents(last["content"], message["content"])
    if "reasoning_content" in message:
        last["reasoning_content"] = "\n".join(filter(None, (last.get("reasoning_content"), message["reasoning_content"])))
    if "tool_calls" in message:
        last["tool_calls"] = [*last.get("tool_calls", ()), *message["tool_calls"]]


def _is_continued(last: MessageBody) -> bool:
    return last.role == "assistant" and any(block.text for block in last.content) and last.content[-1].type == "text"


def _template_kwargs(body: ConversationBody) -> dict[str, Any]:
    kwargs: dict[str, Any] = {}
    if body.thinking is not None and body.thinking.type != "adaptive":
        kwargs |= thinking_kwargs(body.chat_template_kwargs, enabled=body.thinking.type == "enabled")
    if body.output_config is not None and body.output_config.effort is not None:
        kwargs["reasoning_effort"] = body.output_config.effort
    return kwargs | (body.chat_template_kwargs or {})


def _tool(tool: ToolBody) -> Tool:
    return Tool(tool.name, tool.description, tool.input_schema or {}, tool.strict)


def _tool_choice(choice: ToolChoiceBody | None) -> ToolChoice:
    match choice:
        case ToolChoiceBody(type="any"):
            return "required"
        case ToolChoiceBody(type="tool", name=str(name)):
            return NamedTool(name)
        case ToolChoiceBody(type="none"):
            return "none"
    return "auto"


def _text(path: str, block: ContentBlock | ResultBlock) -> str:
    if block.type != "text":
        raise InvalidRequest(f"{path}.type: blocks of type {block.type!r:.64} are not supported here.", field=f"{path}.type")
    return required(path, "text", block.text)
