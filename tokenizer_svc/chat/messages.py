"""Chat messages: converts OpenAI's JSON to the form that templates need.

Runs in the renderer's process. Knows the structure of messages, tools and documents; knows no templates.
"""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tetrad.services.models.template_variables import RESERVED_VARIABLES

Message = dict[str, Any]
_MODALITIES = ("image", "audio", "video")


class ChatError(Exception):
    """The conversation cannot be rendered; `field` is the request field with the problem. It becomes InvalidRequest."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


def parse_messages(text: str) -> list[Message]:
    """Return the messages of a JSON array. Raises ChatError if the text is not an array of messages, or is empty."""
    messages = _parse_objects(text, "messages_json")
    if not messages:
        raise ChatError("messages_json holds no messages; at least one is needed.", "messages_json")
    for i, message in enumerate(messages):
        _check_message(i, message)
        _parse_tool_arguments(i, message)
    return messages


def parse_optional_objects(text: str, field: str) -> list[dict[str, Any]] | None:
    """Return a JSON array of objects (tools, documents); None for an empty text or array."""
    return (_parse_objects(text, field) or None) if text else None


def parse_kwargs(text: str) -> dict[str, Any]:
    """Return further template variables. Raises ChatError for reserved names."""
    field = "chat_template_kwargs_json"
    value = _parse(text, field) if text else {}
    if not isinstance(value, dict):
        raise ChatError(f"{field} is a JSON {_kind(value)}, not an object.", field)
    if reserved := RESERVED_VARIABLES & value.keys():
        raise ChatError(f"{field} sets {min(reserved)!r}, which is an argument of rendering and no further variable.", field)
    return value


def count_media(messages: list[Message]) -> dict[str, int]:
    """Return the number of media parts of all messages by modality."""
    contents = [message["content"] for message in messages if isinstance(message.get("content"), list)]
    return dict(Counter(modality for content in contents for part in content if (modality := _modality_of(part))))


def flatten_content(messages: list[Message], media_texts: Mapping[str, str]) -> None:
    """Join lists of parts to one text, for templates that read only texts.

    Args:
        messages: changed.
        media_texts: text of an item by modality. As in vLLM, those of a message stand before its text, unless the text has them
            already.

    Raises:
        ChatError: a part is neither text nor of such a modality, or a text has more placeholders than the message has items.
    """
    for i, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list):
            modalities = [_modality_of(part) for part in content]
            others = [part for part, modality in zip(content, modalities, strict=True) if modality not in media_texts]
            text = "\n".join(_text_of_part(i, part) for part in others)
            message["content"] = _with_media(text, Counter(media_texts[each] for each in modalities if each in media_texts))
        elif content is None:
            # A turn with only tool calls has no content, but templates concatenate it with other texts.
            message["content"] = ""


def split_content(messages: list[Message]) -> None:
    """Convert contents that are texts to lists of one part, for templates that read only parts."""
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            message["content"] = [{"type": "text", "text": content}]
        elif content is None:
            message["content"] = []


def rename_developers(messages: list[Message]) -> None:
    """Rename the role developer to system, for templates without it; system messages at the start are joined to one."""
    if not any(message["role"] == "developer" for message in messages):
        return
    renamed = [{**message, "role": "system"} if message["role"] == "developer" else message for message in messages]
    # Templates with one system message accept it only as the first message.
    while len(renamed) > 1 and all(_is_system_text(message) for message in renamed[:2]):
        renamed[:2] = [{**renamed[0], "content": f"{renamed[0]['content']}\n\n{renamed[1]['content']}"}]
    messages[:] = renamed


def rename_reasoning(messages: list[Message], field: str) -> None:
    """Copy the reasoning of messages from `reasoning_content` to the field that the template reads."""
    for place, message in enumerate(messages):
        reasoning = message.get("reasoning_content")
        # gpt-oss' template refuses a message with calls, a text and `thinking`.
        is_refused = field == "thinking" and message.get("tool_calls") and message.get("content")
        if reasoning and not is_refused:
            messages[place] = {field: reasoning, **message}


def write_arguments(messages: list[Message]) -> None:
    """Convert the arguments of tool calls back to JSON text, for templates that concatenate them with other texts."""
    for message in messages:
        for call in message.get("tool_calls") or ():
            function = call.get("function")
            if isinstance(function, dict) and isinstance(function.get("arguments"), (dict, list)):
                function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)


def write_unknown_media(messages: list[Message], media_texts: Mapping[str, str], source: str) -> None:
    """Replace parts of modalities that a template for lists of parts does not name by text parts with their placeholders.

    The files of SmolVLM2 have such a template for videos; transformers replaces it by one of its own with this result.

    Args:
        messages: changed.
        media_texts: text of an item by modality.
        source: the template.
    """
    unknown = {modality: text for modality, text in media_texts.items() if modality not in source}
    for message in messages if unknown else ():
        content = message.get("content")
        if isinstance(content, list) and any(_modality_of(part) in unknown for part in content):
            message["content"] = [
                {"type": "text", "text": unknown[modality]} if (modality := _modality_of(part)) in unknown else part
                for part in content
            ]


def _with_media(text: str, numbers: Mapping[str, int]) -> str:
    """Return a text with the placeholders of a message's items before it, without those that it has."""
    missing: list[str] = []
    for placeholder, number in numbers.items():
        num_missing = number - text.count(placeholder)
        if num_missing < 0:
            raise ChatError(
                f"Found more '{placeholder}' placeholders in input prompt than actual multimodal data items.", "messages_json"
            )
        missing += [placeholder] * num_missing
    return "\n".join([*missing, text])


def _modality_of(part: object) -> str:
    """Return the modality of a media part; empty: it is no such part."""
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) and kind in _MODALITIES else ""


def _is_system_text(message: Message) -> bool:
    return message["role"] == "system" and isinstance(message.get("content"), str)


def _check_message(i: int, message: Mapping[str, Any]) -> None:
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise ChatError(f"messages_json: message {i} has no role.", "messages_json")
    if content is not None and not isinstance(content, (str, list)):
        raise ChatError(
            f"messages_json: content of message {i} is a JSON {_kind(content)}, not a text or array.", "messages_json"
        )
    if isinstance(content, list) and not all(isinstance(part, (dict, str)) for part in content):
        raise ChatError(f"messages_json: content of message {i} holds parts that are no objects.", "messages_json")


def _parse_tool_arguments(i: int, message: Message) -> None:
    """Parse the arguments of tool calls, which OpenAI sends as JSON in a string, to the object that templates need."""
    calls = message.get("tool_calls")
    if calls is None:
        return
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise ChatError(f"messages_json: tool_calls of message {i} is not an array of objects.", "messages_json")
    for call in calls:
        function = call.get("function")
        if function is not None and not isinstance(function, dict):
            raise ChatError(f"messages_json: tool_calls of message {i} holds a function that is no object.", "messages_json")
        if function and isinstance(function.get("arguments"), str):
            function["arguments"] = _parse(function["arguments"] or "{}", "messages_json")


def _text_of_part(i: int, part: dict[str, Any] | str) -> str:
    text = part if isinstance(part, str) else part.get("text")
    if not isinstance(text, str):
        kind = part.get("type") if isinstance(part, dict) else None
        raise ChatError(f"messages_json: message {i} has a part of type {kind!r}; this model takes text only.", "messages_json")
    return text


def _parse_objects(text: str, field: str) -> list[dict[str, Any]]:
    value = _parse(text, field)
    if not isinstance(value, list):
        raise ChatError(f"{field} is a JSON {_kind(value)}, not an array.", field)
    for i, item in enumerate(value):
        if not isinstance(item, dict):
            raise ChatError(f"{field}: item {i} is a JSON {_kind(item)}, not an object.", field)
    return value


def _parse(text: str, field: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ChatError(f"{field} is nested too deeply.", field) from None
    except ValueError as error:
        raise ChatError(f"{field} is not JSON: {error}.", field) from error


def _kind(value: object) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null")
