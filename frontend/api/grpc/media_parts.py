"""Media parts: decodes the images of gRPC requests to sources. It only converts."""

from typing import Any

from tetrad.frontend.media.items import IMAGE, MediaSource
from tetrad.frontend.media.uuids import checked_uuid
from tetrad.services.errors import InvalidRequest, UnsupportedArgument
from tetrad.v1 import inference_pb2

_MODALITIES = (IMAGE, "audio", "video")


def source_of(where: str, part: inference_pb2.MediaPart, modality: str = "") -> MediaSource:
    """Return the image of a part.

    Args:
        where: the field of the request, for errors.
        part: the part.
        modality: what the field that holds the part says; empty: nothing.

    Raises:
        UnsupportedArgument: the part is no image.
        InvalidRequest: the part has neither a file, nor a URL, nor a uuid.
    """
    kind = part.modality or modality or _modality_of(part.media_type)
    if kind != IMAGE:
        raise UnsupportedArgument(f"{where}: media of modality {kind[:32]!r} are not supported, only {IMAGE!r}.", field=where)
    uuid = checked_uuid(f"{where}.uuid", part.uuid or None)
    if not part.data and not part.url and not uuid:
        raise InvalidRequest(f"{where} needs data, url or uuid.", field=where)
    return MediaSource(where=where, data=part.data or None, url=part.url, uuid=uuid, media_type=part.media_type)


def part_of(source: MediaSource) -> dict[str, Any]:
    """Return the part of an image for the body of a chat completion, which holds plain values only."""
    name = {"uuid": source.uuid} if source.uuid else {}
    if source.data is None:
        return {"type": "image_url", "image_url": source.url or None, **name}
    return {"type": IMAGE, IMAGE: source.data, "media_type": source.media_type, **name}


def _modality_of(media_type: str) -> str:
    """Return the modality of a media type; another or absent type is taken for an image, which is then decoded or refused."""
    kind = media_type.partition("/")[0]
    return kind if kind in _MODALITIES else IMAGE
