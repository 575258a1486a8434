"""Media contents: contents of messages that may have images, audio or videos among their texts, in the common form of all chat
APIs.

A content without media is a text; one with media is a list of parts.
"""

from collections.abc import Iterable
from typing import Any

from tetrad.frontend.media.items import MediaSource
from tetrad.frontend.media.parts import media_part

Part = dict[str, Any]
Content = str | list[Part]


def content_of(pieces: Iterable[str | MediaSource]) -> Content:
    """Return the content of texts and media, in order; texts alone are joined with line breaks."""
    given = list(pieces)
    texts = [piece for piece in given if isinstance(piece, str)]
    if len(texts) == len(given):
        return "\n".join(texts)
    return [_text_part(piece) if isinstance(piece, str) else media_part(piece) for piece in given]


def text_and_media(content: Content) -> tuple[str, list[Part]]:
    """Return the joined texts of a content, and the parts of its media."""
    if isinstance(content, str):
        return content, []
    texts = [part["text"] for part in content if part["type"] == "text"]
    return "\n".join(texts), [part for part in content if part["type"] != "text"]


def joined_contents(first: Content, second: Content) -> Content:
    """Return one content with all texts and media of two, in order."""
    if isinstance(first, str) and isinstance(second, str):
        return "\n".join(filter(None, (first, second)))
    return [*_parts(first), *_parts(second)]


def _parts(content: Content) -> list[Part]:
    if isinstance(content, str):
        return [_text_part(content)] if content else []
    return content


def _text_part(text: str) -> Part:
    return {"type": "text", "text": text}
