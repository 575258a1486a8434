"""Chat embeddings: reads message parts with prompt embeddings, {"type": "prompt_embeds", "data": base64}."""

import dataclasses
from typing import Any

from tetrad.frontend.api.http.chat.bodies import ChatCompletionRequest
from tetrad.frontend.api.http.chat.conversations import conversation_of
from tetrad.frontend.api.http.requests.embeds import check_embeds_allowed, decode_files
from tetrad.frontend.chat.conversation import Conversation
from tetrad.frontend.chat.embedded import mark_of
from tetrad.frontend.media.parts import media_of_part
from tetrad.services.errors import InvalidRequest

_TYPE = "prompt_embeds"


async def with_decoded_embeds(conversation: Conversation, *, enabled: bool, echoes: bool) -> Conversation:
    """Return the conversation with marks in the messages and the decoded embeddings in `embeds`.

    Args:
        conversation: the conversation of the body.
        enabled: whether the server accepts embeddings.
        echoes: whether the body has `echo`.

    Raises:
        InvalidRequest: embeddings are not accepted, or are invalid; the error names the part.
    """
    if not any(_is_embedded(part) for message in conversation.messages for part in _parts(message)):
        return conversation
    files: list[tuple[str, str]] = []
    messages = []
    for place, message in enumerate(conversation.messages):
        parts = _parts(message).copy()
        for number, part in enumerate(parts):
            if _is_embedded(part):
                field = f"messages[{place}].content[{number}]"
                check_embeds_allowed(field, enabled=enabled, echoes=echoes)
                parts[number] = {"type": "text", "text": mark_of(len(files))}
                files.append((f"{field}.data", _data(part, f"{field}.data")))
        messages.append({**message, "content": parts} if parts else message)
    if conversation.add_special_tokens:
        raise InvalidRequest("add_special_tokens is not compatible with prompt embeds.", field="add_special_tokens")
    return dataclasses.replace(conversation, messages=messages, embeds=await decode_files(files))


def conversation_without_embeds(body: ChatCompletionRequest) -> Conversation:
    """Return the conversation of a body that is to be converted to token ids. InvalidRequest if a part is an embedding."""
    conversation = conversation_of(body)
    for place, message in enumerate(conversation.messages):
        for number, part in enumerate(_parts(message)):
            field = f"messages[{place}].content[{number}]"
            if _is_embedded(part) or media_of_part(field, part) is not None:
                kind = part.get("type") or "image_url"
                raise InvalidRequest(
                    f"{field} has the type {kind}, which has no token ids; send it to a chat endpoint.", field=field
                )
    return conversation


def _parts(message: dict[str, Any]) -> list[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def _is_embedded(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == _TYPE


def _data(part: dict[str, Any], field: str) -> str:
    data = part.get("data")
    if not isinstance(data, str) or not data:
        raise InvalidRequest(f"{field} must be the base64 of a safetensors file, got {type(data).__name__}.", field=field)
    return data
