"""Request ids: makes an id for a request without one, and checks the id that a client sends."""

import uuid

from tetrad.services.errors import InvalidRequest
from tetrad.services.request_context import VALID_REQUEST_ID


def new_request_id() -> str:
    """Return a random id of 32 hexadecimal digits."""
    return uuid.uuid4().hex


def checked_request_id(given: str) -> str:
    """Return `given`; InvalidRequest if it does not match `VALID_REQUEST_ID`."""
    if not VALID_REQUEST_ID.fullmatch(given):
        raise InvalidRequest(f"request_id must match {VALID_REQUEST_ID.pattern}, got {given[:64]!r}.", field="request_id")
    return given
