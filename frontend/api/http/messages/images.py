"""Images of the Messages API: reads image blocks as sources."""

from tetrad.frontend.api.http.messages.bodies import ContentBlock, ResultBlock
from tetrad.frontend.api.http.schemas.fields import required
from tetrad.frontend.media.items import MediaSource
from tetrad.services.errors import InvalidRequest


def image_of(path: str, block: ContentBlock | ResultBlock) -> MediaSource | None:
    """Return the image of a block; None for a block of another type. InvalidRequest for a source of another type."""
    if block.type != "image":
        return None
    source, where = block.source, f"{path}.source"
    if source is None:
        raise InvalidRequest(f"{where}: Field required", field=where)
    if source.type == "base64":
        data = required(where, "data", source.data)
        if not data:
            raise InvalidRequest(f"{where}.data must not be empty.", field=f"{where}.data")
        return MediaSource(where=where, base64=data, media_type=(source.media_type or "").lower())
    if source.type == "url":
        url = required(where, "url", source.url)
        if not url:
            raise InvalidRequest(f"{where}.url must not be empty.", field=f"{where}.url")
        return MediaSource(where=where, url=url)
    text = f"{where}: sources of type {source.type!r:.64} are not supported, only base64 and url."
    raise InvalidRequest(text, field=f"{where}.type")
