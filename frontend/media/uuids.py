"""UUIDs: the clients' own names of images. Equal names are taken for equal content, among requests of one cache salt."""

import hashlib

from tetrad.services.errors import InvalidRequest

_MAX_CHARS = 256


def checked_uuid(where: str, value: object) -> str:
    """Return a client's name of an image, empty for None; InvalidRequest for a value that is no short text."""
    if value is None:
        return ""
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{where} must be a text of at least one character, got {value!r:.64}.", field=where)
    if len(value) > _MAX_CHARS or not value.isprintable():
        text = f"{where} must have at most {_MAX_CHARS} characters, all printable, got {value[:64]!r} ({len(value)})."
        raise InvalidRequest(text, field=where)
    return value


def salted(uuid: str, cache_salt: str) -> str:
    """Return the name for the tokenizer: the uuid, or a digest of it and the salt. Requests of other salts share no names."""
    if not uuid or not cache_salt:
        return uuid
    # The length separates the two, so that no uuid without a salt has the same name by design.
    return hashlib.sha256(f"{len(cache_salt)}:{cache_salt}{uuid}".encode()).hexdigest()
