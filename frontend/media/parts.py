"""Media parts: reads the content parts of messages that hold images, audio and videos, in the forms of OpenAI and vLLM.

Some forms do not come from JSON: {"type": "image", "image": value}, and so for each modality, with a MediaSource or MediaItem
of another API, or with the bytes of a file.
"""

from collections.abc import Mapping
from typing import Any

from tetrad.frontend.media.items import AUDIO, IMAGE, MODALITIES, VIDEO, MediaItem, MediaSource
from tetrad.frontend.media.uuids import checked_uuid
from tetrad.services.errors import InvalidRequest

_LINKS: Mapping[str, tuple[str, str]] = {
    "image_url": (IMAGE, "image_url"),
    "input_image": (IMAGE, "image_url"),
    "audio_url": (AUDIO, "audio_url"),
    "video_url": (VIDEO, "video_url"),
}
"""Type of a part -> its modality, and its key with a URL."""
_INPUT_AUDIO = "input_audio"
_EMBEDS: Mapping[str, str] = {"image_embeds": IMAGE, "audio_embeds": AUDIO, "video_embeds": VIDEO}
"""Type of a part, and its key, with embeddings that the client has computed -> their modality."""
_MAX_TENSORS = 8
_MAX_FORMAT_CHARS = 32
Media = MediaSource | MediaItem


def media_part(source: Media) -> dict[str, Any]:
    """Return the content part of an item."""
    return {"type": source.modality, source.modality: source}


def media_of_part(where: str, part: object) -> Media | None:
    """Return the item of a content part; None for another part.

    Args:
        where: the place of the part in the request.
        part: a part of a message's content.

    Raises:
        InvalidRequest: the part has no item, or in another form.
    """
    if not isinstance(part, dict):
        return None
    kind = part.get("type")
    if kind is None:
        kind = next((name for name in (*_LINKS, _INPUT_AUDIO, *_EMBEDS) if name in part), None)
    if not isinstance(kind, str):
        return None
    if kind in MODALITIES:
        return _given(where, part, kind)
    if kind == _INPUT_AUDIO:
        return _input_audio(where, part)
    if kind in _EMBEDS:
        return _embedded(where, part, kind)
    return _linked(where, part, *_LINKS[kind]) if kind in _LINKS else None


def _given(where: str, part: dict[str, Any], modality: str) -> Media:
    value = part.get(modality)
    if isinstance(value, MediaSource | MediaItem):
        return value
    if not isinstance(value, bytes):
        article = "an" if modality[0] in "aeiou" else "a"
        text = f"{where}: Unsupported chat content part type: '{modality}'; "
        raise InvalidRequest(f"{text}send {article} {modality} as a part of type {modality}_url.", field=where)
    return MediaSource(
        where=where,
        data=value,
        uuid=checked_uuid(f"{where}.uuid", part.get("uuid")),
        media_type=part.get("media_type") or "",
        modality=modality,
    )


def _linked(where: str, part: dict[str, Any], modality: str, key: str) -> MediaSource:
    """Return the item of a part with a URL, {url, detail, uuid}, or null with a uuid. `detail` has no effect."""
    given, uuid = part.get(key), part.get("uuid")
    if part.get("file_id") is not None:
        raise InvalidRequest(f"{where}.file_id is not supported: this server stores no files.", field=f"{where}.file_id")
    if isinstance(given, dict):
        uuid = given.get("uuid") if uuid is None else uuid
        given = given.get("url")
    name = checked_uuid(f"{where}.uuid", uuid)
    if (given is None or given == "") and name:
        return MediaSource(where=where, uuid=name, modality=modality)
    if not isinstance(given, str) or not given:
        text = f"{where}.{key} must be a URL or {{url}}, got {type(given).__name__ if given != '' else 'an empty text'}."
        raise InvalidRequest(text, field=f"{where}.{key}")
    return MediaSource(where=where, url=given, uuid=name, modality=modality)


def _embedded(where: str, part: dict[str, Any], key: str) -> MediaSource:
    """Return the item of a part with a tensor, or an object of them, as base64 of files of torch.save, or null with a uuid."""
    given, field = part.get(key), f"{where}.{key}"
    uuid = checked_uuid(f"{where}.uuid", part.get("uuid"))
    if given is None and uuid:
        return MediaSource(where=where, uuid=uuid, modality=_EMBEDS[key], is_embeds=True)
    tensors: dict[str, Any] = given if isinstance(given, dict) else {key: given}
    if not 0 < len(tensors) <= _MAX_TENSORS or not all(isinstance(each, str) and each for each in tensors.values()):
        text = f"{field} must be the base64 of a file of torch.save, or an object of such texts, at most {_MAX_TENSORS}."
        raise InvalidRequest(text, field=field)
    return MediaSource(where=where, embeds=tensors, uuid=uuid, modality=_EMBEDS[key], is_embeds=True)


def _input_audio(where: str, part: dict[str, Any]) -> MediaSource:
    """Return the audio of a part with {data, format}, data in base64, or null with a uuid. The file itself has its format."""
    given = part.get(_INPUT_AUDIO)
    uuid = checked_uuid(f"{where}.uuid", part.get("uuid"))
    if given is None and uuid:
        return MediaSource(where=where, uuid=uuid, modality=AUDIO)
    field = f"{where}.{_INPUT_AUDIO}"
    if not isinstance(given, dict):
        raise InvalidRequest(f"{field} must be {{data, format}}, got {type(given).__name__}.", field=field)
    data, form = given.get("data"), given.get("format")
    if not isinstance(data, str) or not data:
        raise InvalidRequest(f"{field}.data must be the file in base64.", field=f"{field}.data")
    if form is not None and (not isinstance(form, str) or not form.isalnum() or len(form) > _MAX_FORMAT_CHARS):
        text = f"{field}.format must be the name of a format such as 'wav' or 'mp3', got {form!r:.64}."
        raise InvalidRequest(text, field=f"{field}.format")
    return MediaSource(where=where, base64=data, uuid=uuid, media_type=f"audio/{form}" if form else "", modality=AUDIO)
