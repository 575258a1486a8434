"""Refusals: raises InvalidRequest for features of foreign APIs that Tetrad does not have."""

from collections.abc import Collection, Iterable

from tetrad.services.errors import InvalidRequest


def refuse(given: Collection[str], fields: Iterable[str], reason: str) -> None:
    """Raise InvalidRequest with `reason` if any of these fields is given."""
    for name in fields:
        if name in given:
            raise InvalidRequest(f"{name} is not supported: {reason}.", field=name)
