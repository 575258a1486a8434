"""Chat messages: converts OpenAI's forms of a message to the form of chat templates. Checks form and size. Of a template it
knows only the roles that its text names; it reads no images, but takes them out of the messages.
"""

import json
from collections.abc import Sequence
from typing import Any

from tetrad.frontend.media.parts import Media, media_of_part
from tetrad.services.errors import InvalidRequest

_FIELD = "messages"
_KINDS = "text, image_url, input_audio, audio_url, video_url, image_embeds and audio_embeds"
# `function` is the older name of `tool` in OpenAI's API.
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def plain_messages(
    messages: Sequence[dict[str, Any]], media: list[Media] | None = None, template: str = ""
) -> list[dict[str, Any]]:
    """Return the messages with joined text parts, without null fields, and with reasoning in the field that templates read.

    A content with images stays a list of parts: {"type": "text", "text": ...} and {"type": "image"}, one for each image.

    Args:
        messages: {"role", "content", ...}; content is a string, a list of parts, or None.
        media: receives the images, in order; None: images are refused.
        template: the text of the chat template; messages may have the roles that it names, such as "observation", besides
            OpenAI's. Others are refused: templates drop their messages, or write what no model was trained on.

    Raises:
        InvalidRequest: an unknown role, parts of other types, or tool calls with missing fields or fields of other types.
    """
    if not messages:
        raise InvalidRequest("messages cannot be empty", field=_FIELD)
    return [_plain(f"{_FIELD}[{place}]", message, media, template) for place, message in enumerate(messages)]


def in_parts(messages: Sequence[dict[str, Any]], plain: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return plain messages with their contents as lists of text parts, for templates that read lists of parts.

    Args:
        messages: the messages as the client sent them.
        plain: the result of `plain_messages` for them.
    """
    return [
        {**made, "content": _parts(given.get("content"), made["content"])} for given, made in zip(messages, plain, strict=True)
    ]


def num_chars(value: object) -> int:
    """Return the number of characters of all strings in a JSON value (messages, tools), without the names of fields."""
    number, left = 0, [value]
    while left:
        each = left.pop()
        if isinstance(each, str):
            number += len(each)
        elif isinstance(each, dict):
            left += each.values()
        elif isinstance(each, list | tuple):
            left += each
    return number


def _plain(where: str, message: dict[str, Any], media: list[Media] | None, template: str) -> dict[str, Any]:
    # Absent fields stay absent: templates test whether a field is defined.
    plain = {name: value for name, value in message.items() if value is not None}
    plain["role"] = _role(where, message.get("role"), template)
    plain["content"] = _content(where, message, media)
    plain.pop("refusal", None)
    if plain.get("reasoning"):
        plain.setdefault("reasoning_content", plain.pop("reasoning"))
    if plain["role"] == "assistant":
        _check_calls(where, plain)
    elif plain["role"] == "tool":
        # Most templates do not read the id: any value serves.
        plain.setdefault("tool_call_id", plain.get("name", ""))
    _check_text(where, plain)
    return plain


def _role(where: str, role: object, template: str) -> str:
    if not isinstance(role, str):
        raise InvalidRequest(f"{where} needs a role.", field=f"{where}.role")
    if role not in _ROLES and not (role and (f"'{role}'" in template or f'"{role}"' in template)):
        text = f"{where} has the unknown role {role[:64]!r}; known are {', '.join(_ROLES[:-1])}."
        raise InvalidRequest(text, field=f"{where}.role")
    return "tool" if role == "function" else role


def _content(where: str, message: dict[str, Any], media: list[Media] | None) -> str | list[dict[str, str]]:
    content = message.get("content")
    if content is None:
        # A refusal takes the place of the assistant's content.
        return message["refusal"] if isinstance(message.get("refusal"), str) else ""
    if isinstance(content, list):
        return _joined(f"{where}.content", content, media)
    if not isinstance(content, str):
        text = f"{where}.content must be a string or a list of parts, got {type(content).__name__}."
        raise InvalidRequest(text, field=f"{where}.content")
    return content


def _joined(where: str, parts: list[Any], media: list[Media] | None) -> str | list[dict[str, str]]:
    """Return parts as one text, or as a list of parts if there are media among them."""
    made: list[dict[str, str]] = []
    for place, part in enumerate(parts):
        found = None if media is None else media_of_part(f"{where}[{place}]", part)
        if found is None or media is None:
            made.append({"type": "text", "text": _text(where, part)})
        else:
            media.append(found)
            made.append({"type": found.modality})
    if any(part["type"] != "text" for part in made):
        return made
    return "\n".join(part["text"] for part in made)


def _parts(given: object, text: str) -> list[dict[str, str]]:
    texts = [_text(_FIELD, part) for part in given] if isinstance(given, list) else [text]
    return [{"type": "text", "text": each} for each in texts]


def _text(where: str, part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and part.get("type") is None:
        raise InvalidRequest(f"{where}: Missing 'type' field in multimodal part.", field=where)
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    text: object = None
    if isinstance(part, dict) and kind in ("text", "input_text", "output_text"):
        text = part.get("text")
    elif isinstance(part, dict) and kind == "refusal":
        text = part.get("refusal")
    if not isinstance(text, str):
        message = f"{where}: Unsupported chat content part type: {kind!r:.64}; "
        message += "its text is missing." if kind == "text" else f"there are {_KINDS}."

        raise InvalidRequest(message, field=where)
    return text


def _check_calls(where: str, message: dict[str, Any]) -> None:
    if "function_call" in message:
        text = f"{where}.function_call is not supported; use tool_calls."
        raise InvalidRequest(text, field=f"{where}.function_call")
    calls = message.get("tool_calls", [])
    if not isinstance(calls, list):
        raise InvalidRequest(f"{where}.tool_calls must be a list.", field=f"{where}.tool_calls")
    if calls:
        message["tool_calls"] = [_call(f"{where}.tool_calls[{place}]", call) for place, call in enumerate(calls)]
    else:
        message.pop("tool_calls", None)


def _call(where: str, call: object) -> dict[str, Any]:
    """Return a call whose arguments are an object or its JSON text.

    A model may write other text, or its output may be cut off. Clients send such a call back with every later turn, so it must
    not end the conversation: it is shown to the model without arguments.
    """
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequest(f"{where} must be {{id, type, function: {{name, arguments}}}}.", field=where)
    arguments = function.get("arguments", "{}")
    if not isinstance(arguments, str | dict):
        text = f"{where}.function.arguments must be a JSON object or its text, got {type(arguments).__name__}."
        raise InvalidRequest(text, field=f"{where}.function.arguments")
    if isinstance(arguments, dict) or not arguments or _is_object(arguments):
        return call
    return {**call, "function": {**function, "arguments": "{}"}}


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _check_text(where: str, message: dict[str, Any]) -> None:
    """Refuse lone surrogates in any field of the message."""
    for name, value in message.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            place = f" at character {error.start}" if isinstance(value, str) else ""
            message_text = f"{where}.{name} contains a lone surrogate{place}: it is not valid text."
            raise InvalidRequest(message_text, field=f"{where}.{name}") from None
