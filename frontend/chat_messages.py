"""Chat messages: OpenAI's forms of a message -> the form chat templates read. Checks form and size; knows no templates."""

from collections.abc import Sequence
from typing import Any

from tetrad.services.errors import InvalidRequest

_FIELD = "messages"


def plain_messages(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with their text parts joined; InvalidRequest for parts that are not text.

    Args:
        messages: {"role", "content", ...}; content is a string, a list of parts, or None.
    """
    if not messages:
        raise InvalidRequest("messages cannot be empty", field=_FIELD)
    return [_plain(place, message) for place, message in enumerate(messages)]


def num_chars(messages: Sequence[dict[str, Any]]) -> int:
    """Return the characters of all contents."""
    return sum(len(message.get("content") or "") for message in messages)


def _plain(place: int, message: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(message.get("role"), str):
        raise InvalidRequest(f"messages[{place}] needs a role.", field=f"{_FIELD}[{place}].role")
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(_text(place, part) for part in content)
    if content is not None and not isinstance(content, str):
        text = f"messages[{place}].content must be a string or a list of parts, got {type(content).__name__}."
        raise InvalidRequest(text, field=f"{_FIELD}[{place}].content")
    try:
        (content or "").encode()
    except UnicodeEncodeError as error:
        text = f"messages[{place}].content contains a lone surrogate at character {error.start}: it is not valid text."
        raise InvalidRequest(text, field=f"{_FIELD}[{place}].content") from None
    # Absent fields stay absent: templates ask whether they are defined.
    return {name: value for name, value in message.items() if value is not None} | {"content": content or ""}


def _text(place: int, part: object) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    text = part.get("text") if isinstance(part, dict) and kind in ("text", "input_text") else None
    if not isinstance(text, str):
        message = f"messages[{place}].content: parts of type {kind!r} are not supported by this model, only text."
        raise InvalidRequest(message, field=f"{_FIELD}[{place}].content")
    return text
