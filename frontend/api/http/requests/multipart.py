"""Multipart: splits a body of multipart/form-data (RFC 7578) into its parts. Knows bytes and their limits; knows no fields."""

from dataclasses import dataclass, field
from email.message import Message
from email.parser import BytesHeaderParser
from email.utils import collapse_rfc2231_value

from tetrad.frontend.api.http.schemas.errors import UnsupportedMediaType
from tetrad.services.errors import InvalidRequest

MEDIA_TYPE = "multipart/form-data"
_MAX_PARTS = 128
_MAX_HEADER_BYTES = 8192
_MAX_BOUNDARY_CHARS = 70
"""As in RFC 2046, section 5.1.1."""
_PLAIN_ENCODINGS = ("", "binary", "8bit", "7bit")
_END = b"--"
_LINE = b"\r\n"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a form.

    Attributes:
        name: the field's name.
        filename: the name of the file; None: the part is a text.
        media_type: as "audio/mpeg"; empty: not given.
        data: the content.
    """

    name: str
    filename: str | None
    media_type: str
    data: bytes = field(repr=False)


def boundary_of(content_type: str) -> bytes:
    """Return the boundary that a Content-Type header gives.

    Raises:
        UnsupportedMediaType: the header names another type.
        InvalidRequest: it has no valid boundary.
    """
    header = Message()
    header["content-type"] = content_type
    if header.get_content_type() != MEDIA_TYPE:
        raise UnsupportedMediaType(f"The body must be {MEDIA_TYPE}, got {header.get_content_type()[:64]!r}.")
    boundary = header.get_boundary() or ""
    if not 1 <= len(boundary) <= _MAX_BOUNDARY_CHARS or not boundary.isascii():
        text = f"Content-Type must give a boundary of 1 to {_MAX_BOUNDARY_CHARS} characters, got {boundary[:80]!r}."
        raise InvalidRequest(text)
    return boundary.encode()


def split_form(body: bytes, boundary: bytes) -> list[Part]:
    """Return the parts of a form, in order; InvalidRequest if the body is no such form."""
    delimiter = _LINE + _END + boundary
    # The first delimiter may be at the beginning of the body, without a line end before it.
    start = 0 if body.startswith(delimiter[len(_LINE) :]) else body.find(delimiter)
    if start < 0:
        raise InvalidRequest("The form has no part: its boundary is not in the body.")
    start = body.find(boundary, start) + len(boundary)
    parts: list[Part] = []
    while not body.startswith(_END, start):
        if len(parts) == _MAX_PARTS:
            raise InvalidRequest(f"The form has more than {_MAX_PARTS} parts, the most that are taken.")
        end = body.find(delimiter, start)
        if end < 0:
            raise InvalidRequest("The form ends inside a part: the boundary at its end is missing.")
        parts.append(_part(body, start, end))
        start = end + len(delimiter)
    return parts


def _part(body: bytes, start: int, end: int) -> Part:
    """Return the part between two boundaries: the rest of the boundary's line, headers, an empty line and the content."""
    head_end = body.find(_LINE + _LINE, start, min(end, start + _MAX_HEADER_BYTES))
    if head_end < 0:
        raise InvalidRequest(f"A part of the form has no headers, or more than {_MAX_HEADER_BYTES} bytes of them.")
    [padding, *lines] = body[start:head_end].split(_LINE, 1)
    if padding.strip(b" \t"):
        raise InvalidRequest(f"A boundary of the form is followed by {padding[:32]!r} on its line.")
    headers = BytesHeaderParser().parsebytes(b"".join(lines))
    encoding = str(headers.get("content-transfer-encoding", "")).strip().lower()
    if encoding not in _PLAIN_ENCODINGS:
        raise InvalidRequest(f"Content-Transfer-Encoding {encoding[:32]!r} of a part is not supported: send it as it is.")
    name, filename = (_parameter(headers, each) for each in ("name", "filename"))
    if name is None:
        raise InvalidRequest("A part of the form has no name in its Content-Disposition.")
    media_type = headers.get_content_type() if "content-type" in headers else ""
    return Part(name, filename, media_type, body[head_end + 2 * len(_LINE) : end])


def _parameter(headers: Message, name: str) -> str | None:
    """Return a parameter of Content-Disposition; None if it is not given."""
    found = headers.get_param(name, header="content-disposition")
    return None if found is None else collapse_rfc2231_value(found)
