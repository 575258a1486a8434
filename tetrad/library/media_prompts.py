"""Media prompts: replaces the images, audio and videos of a program's prompts and messages by the contents of files.

The frontend takes files alone, since it decodes no pixels. Knows vLLM's `multi_modal_data` and its content part
`image_pil`; checks nothing else of a prompt. Encoding an image takes up to a second, so it runs in a thread.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from tetrad.frontend.media.items import MediaSource
from tetrad.frontend.media.uuids import checked_uuid
from tetrad.frontend.request.encoder_decoder import has_two_parts, joined
from tetrad.frontend.request.prompts import PromptType
from tetrad.library.arguments import Conversation
from tetrad.library.audio_bytes import audio_bytes, audio_items
from tetrad.library.embeds_items import embeds_items, is_embeds
from tetrad.library.image_bytes import image_bytes
from tetrad.library.video_bytes import video_bytes, video_items
from tetrad.services.errors import InvalidRequest

_DATA, _KWARGS = "multi_modal_data", "mm_processor_kwargs"
_IMAGE_DIMENSIONS = 3


def has_media(prompt: PromptType) -> bool:
    """Return whether a prompt has images that are still to be preprocessed."""
    return isinstance(prompt, dict) and (bool(prompt.get(_DATA)) or has_two_parts(prompt))


def has_media_parts(messages: Conversation) -> bool:
    """Return whether a message has a content part that is no text."""
    texts = ("text", "input_text", "output_text", "refusal")
    parts = (part for message in messages for part in _parts(message) if isinstance(part, Mapping))
    return any(part.get("type") not in texts for part in parts)


async def with_files(prompt: PromptType) -> PromptType:
    """Return a prompt whose media are files; a prompt without media is returned as it is. InvalidRequest: one is no image."""
    if not has_media(prompt):
        return prompt
    return await asyncio.to_thread(_with_files, _one_part(prompt))


def with_processor_kwargs(prompt: PromptType, kwargs: Mapping[str, Any] | None) -> PromptType:
    """Return a prompt with settings of the model's media processor beside its own, which have precedence.

    A prompt without media is returned as it is.
    """
    if not kwargs or not has_media(prompt):
        return prompt
    fields = _one_part(prompt)
    return cast(PromptType, {**fields, _KWARGS: {**kwargs, **(fields.get(_KWARGS) or {})}})


async def messages_with_files(messages: Conversation) -> Conversation:
    """Return the messages of a conversation, whose parts with PIL images or tensors became parts with files.

    Raises:
        InvalidRequest: an image cannot be read.
    """
    if not any(_is_made(part) for message in messages for part in _parts(message)):
        return messages
    return await asyncio.to_thread(_messages_with_files, messages)


def _one_part(prompt: PromptType) -> dict[str, Any]:
    """Return a prompt with media as a dict with `multi_modal_data`."""
    fields = cast(dict[str, Any], prompt)
    return joined(fields) if has_two_parts(fields) else fields


def _with_files(prompt: Mapping[str, Any]) -> PromptType:
    data = prompt[_DATA]
    if not isinstance(data, Mapping):
        return cast(PromptType, prompt)  # refused by the frontend
    given = {modality: data[modality] for modality in _READERS if data.get(modality) is not None}
    files = {modality: _files(modality, items) for modality, items in given.items()}
    return cast(PromptType, {**prompt, _DATA: {**data, **files}})


def _files(modality: str, items: Any) -> Sequence[bytes | MediaSource | None]:
    """Return the items of a modality as files; None names an item that the server has seen, by its uuid."""
    if is_embeds(modality, items):
        return embeds_items(modality, items, f"{_DATA}['{modality}']")
    listed, read = _READERS[modality]
    places = ((item, f"{_DATA}['{modality}'][{place}]") for place, item in enumerate(listed(items)))
    return [None if item is None else read(item, where) for item, where in places]


def _listed(items: Any) -> Iterable[Any]:
    """Return the items of a list, or of an array [items, height, width, channels]; one item is a list of it."""
    if isinstance(items, list | tuple):
        return items
    is_batch = hasattr(items, "__array_interface__") and hasattr(items, "shape") and len(items.shape) > _IMAGE_DIMENSIONS
    return list(items) if is_batch else [items]


_READERS: Mapping[str, tuple[Callable[[Any], Iterable[Any]], Callable[[Any, str], bytes]]] = {
    "image": (_listed, image_bytes),
    "audio": (audio_items, audio_bytes),
    "video": (video_items, video_bytes),
}
"""Modality -> functions that return its items one by one, and the file of an item."""


def _messages_with_files(messages: Conversation) -> Conversation:
    return [
        {**message, "content": [_file_part(part) if _is_made(part) else part for part in _parts(message)]}
        if any(map(_is_made, _parts(message)))
        else message
        for message in messages
    ]


def _parts(message: Mapping[str, Any]) -> Sequence[Any]:
    content = message.get("content")
    return content if isinstance(content, list | tuple) else ()


def _is_made(part: object) -> bool:
    """Return whether a part has a value that is no JSON: a PIL image, or tensors."""
    return _is_pil(part) or _embedded_modality(part) is not None


def _embedded_modality(part: object) -> str | None:
    """Return the modality of a part with tensors of embeddings; None for another part, also for one with their base64."""
    if not isinstance(part, Mapping):
        return None
    for modality in _READERS:
        if part.get("type") not in (f"{modality}_embeds", None):
            continue
        given = part.get(f"{modality}_embeds")
        values = given.values() if isinstance(given, Mapping) else [given]
        if any(hasattr(value, "detach") for value in values):
            return modality
    return None


def _is_pil(part: object) -> bool:
    # vLLM also takes parts without a type.
    return isinstance(part, Mapping) and "image_pil" in part and part.get("type") in ("image_pil", None)


def _file_part(part: Mapping[str, Any]) -> dict[str, Any]:
    modality = _embedded_modality(part)
    if modality is not None:
        key = f"{modality}_embeds"
        items = embeds_items(modality, part[key], key)
        if len(items) != 1:
            raise InvalidRequest(f"{key} has {len(items)} items; a part has one.", field=key)
        return {"type": modality, modality: replace(items[0], uuid=checked_uuid(f"{key}.uuid", part.get("uuid")))}
    image, uuid = part["image_pil"], part.get("uuid")
    if image is None and uuid is not None:  # an image that the server has seen
        return {"type": "image_url", "image_url": None, "uuid": uuid}
    return {"type": "image", "image": image_bytes(image, "image_pil"), "uuid": uuid}
