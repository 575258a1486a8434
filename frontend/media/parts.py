"""Media parts: reads the content parts of messages that hold images, in the forms of OpenAI and vLLM.

Two forms do not come from JSON: {"type": "image", "image": value} with a MediaSource or MediaItem of another API, or with the
bytes of a file.
"""

from typing import Any

from tetrad.frontend.media.items import IMAGE, MediaItem, MediaSource
from tetrad.frontend.media.uuids import checked_uuid
from tetrad.services.errors import InvalidRequest

_TYPES = (IMAGE, "image_url", "input_image")
Media = MediaSource | MediaItem


def image_part(source: Media | bytes) -> dict[str, Any]:
    """Return the content part of an image."""
    return {"type": IMAGE, IMAGE: source}


def media_of_part(where: str, part: object) -> Media | None:
    """Return the image of a content part; None for another part.

    Args:
        where: the place of the part in the request.
        part: a part of a message's content.

    Raises:
        InvalidRequest: the part has no image, or in another form.
    """
    if not isinstance(part, dict):
        return None
    kind = part.get("type")
    if kind is None:
        if "image_url" not in part:
            return None
    elif kind not in _TYPES:
        return None
    if kind == IMAGE:
        return _given(where, part)
    return _linked(where, part)


def _given(where: str, part: dict[str, Any]) -> Media:
    value = part.get(IMAGE)
    if isinstance(value, MediaSource | MediaItem):
        return value
    if not isinstance(value, bytes):
        text = f"{where}: Unsupported chat content part type: '{IMAGE}'; send an image as a part of type image_url."
        raise InvalidRequest(text, field=where)
    return MediaSource(
        where=where, data=value, uuid=checked_uuid(f"{where}.uuid", part.get("uuid")), media_type=part.get("media_type") or ""
    )


def _linked(where: str, part: dict[str, Any]) -> MediaSource:
    """Return the image of a part with `image_url`: a URL, {url, detail, uuid}, or null with a uuid. `detail` has no effect."""
    given, uuid = part.get("image_url"), part.get("uuid")
    if part.get("file_id") is not None:
        raise InvalidRequest(f"{where}.file_id is not supported: this server stores no files.", field=f"{where}.file_id")
    if isinstance(given, dict):
        uuid = given.get("uuid") if uuid is None else uuid
        given = given.get("url")
    name = checked_uuid(f"{where}.uuid", uuid)
    if (given is None or given == "") and name:
        return MediaSource(where=where, uuid=name)
    if not isinstance(given, str) or not given:
        text = f"{where}.image_url must be a URL or {{url}}, got {type(given).__name__ if given != '' else 'an empty text'}."
        raise InvalidRequest(text, field=f"{where}.image_url")
    return MediaSource(where=where, url=given, uuid=name)
