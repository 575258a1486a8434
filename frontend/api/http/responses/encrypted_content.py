"""Encrypted content: the text of a reasoning item in the field that clients send back, for requests that `include` it.

A client that stores no responses may drop the `content` of reasoning between the turns, and keep this field alone. Here it is
the text in base64 behind a mark, not encrypted: the client has the text anyway. That of other servers cannot be read.
"""

import base64
import binascii

ENCRYPTED_CONTENT = "reasoning.encrypted_content"

_MARK = "tetrad-"


def encrypted_content_of(text: str) -> str:
    """Return the field's value for the text of a reasoning item."""
    return _MARK + base64.b64encode(text.encode(errors="replace")).decode()


def text_of_encrypted_content(value: str | None) -> str | None:
    """Return the text of a field's value; None if there is none, or another server made it."""
    if value is None or not value.startswith(_MARK):
        return None
    try:
        return base64.b64decode(value.removeprefix(_MARK), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
