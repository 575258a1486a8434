"""Media parts: decodes the media of gRPC requests to sources. It only converts."""

import base64
from typing import Any

from tetrad.frontend.media.items import IMAGE, MODALITIES, MediaSource
from tetrad.frontend.media.uuids import checked_uuid
from tetrad.services.errors import InvalidRequest, UnsupportedArgument
from tetrad.v1 import inference_pb2


def source_of(where: str, part: inference_pb2.MediaPart, modality: str = "") -> MediaSource:
    """Return the item of a part.

    Args:
        where: the field of the request, for errors.
        part: the part.
        modality: what the field that holds the part says; empty: nothing.

    Raises:
        UnsupportedArgument: the part is of another modality.
        InvalidRequest: the part has neither a file, nor a URL, nor embeddings, nor a uuid.
    """
    kind = part.modality or modality or _modality_of(part.media_type)
    if kind not in MODALITIES:
        taken = ", ".join(map(repr, MODALITIES))
        raise UnsupportedArgument(f"{where}: media of modality {kind[:32]!r} are not supported, only {taken}.", field=where)
    uuid = checked_uuid(f"{where}.uuid", part.uuid or None)
    if part.embeds:
        if part.data or part.url:
            raise InvalidRequest(f"{where} has embeds beside data or url.", field=where)
        return MediaSource(where=where, embeds=dict(part.embeds), uuid=uuid, modality=kind, is_embeds=True)
    if not part.data and not part.url and not uuid:
        raise InvalidRequest(f"{where} needs data, url, embeds or uuid.", field=where)
    data = part.data or None
    return MediaSource(where=where, data=data, url=part.url, uuid=uuid, media_type=part.media_type, modality=kind)


def part_of(source: MediaSource) -> dict[str, Any]:
    """Return the part of an item for the body of a chat completion, which holds plain values only."""
    name = {"uuid": source.uuid} if source.uuid else {}
    if source.is_embeds:
        key = f"{source.modality}_embeds"
        files = {tensor: base64.b64encode(file).decode() for tensor, file in source.embeds.items() if isinstance(file, bytes)}
        return {"type": key, key: files, **name}
    if source.data is None:
        key = f"{source.modality}_url"
        return {"type": key, key: source.url or None, **name}
    return {"type": source.modality, source.modality: source.data, "media_type": source.media_type, **name}


def _modality_of(media_type: str) -> str:
    """Return the modality of a media type; another or absent type is taken for an image, which is then decoded or refused."""
    kind = media_type.partition("/")[0]
    return kind if kind in MODALITIES else IMAGE
