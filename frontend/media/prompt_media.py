"""Prompt media: reads the media of a prompt in vLLM's form (`multi_modal_data`, `multi_modal_uuids`) as sources.

The items are files as bytes. Callers with decoded pixels encode them first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tetrad.frontend.media.items import IMAGE, MODALITIES, MediaSource
from tetrad.frontend.media.uuids import checked_uuid
from tetrad.services.errors import InvalidRequest

_FIELD = "multi_modal_data"
_UUIDS = "multi_modal_uuids"


def sources_of(data: object, uuids: object = None) -> tuple[MediaSource, ...]:
    """Return the media of a prompt, in order.

    Args:
        data: {"image": ..., "audio": ..., "video": ...}, each bytes, a MediaSource, None, or a list of these; None with a uuid:
            an item that the server has seen.
        uuids: {"image": name or list of names, ...}; a name may be None. None: no item has a name.

    Raises:
        InvalidRequest: another modality, an item of another type, or another number of names than of items.
    """
    items, names = _listed(_FIELD, data), _listed(_UUIDS, uuids)
    return tuple(
        source
        for modality in dict.fromkeys((*items, *names))
        for source in _sources(modality, items.get(modality, []), names.get(modality, []))
    )


def _sources(modality: str, items: list[Any], names: list[Any]) -> list[MediaSource]:
    if not items:
        items = [None] * len(names)
    if names and len(names) != len(items):
        text = f"{_UUIDS}['{modality}'] has {len(names)} names for {len(items)} items; give one for each, or null."
        raise InvalidRequest(text, field=_UUIDS)
    pairs = zip(items, names or [None] * len(items), strict=True)
    return [_source(modality, place, item, name) for place, (item, name) in enumerate(pairs)]


def checked_kwargs(kwargs: object, field: str = "mm_processor_kwargs") -> dict[str, Any]:
    """Return settings of media, {} for None; InvalidRequest, which names `field`, if they are no object."""
    if kwargs is None:
        return {}
    if not isinstance(kwargs, Mapping):
        raise InvalidRequest(f"{field} must be an object, got {type(kwargs).__name__}.", field=field)
    return dict(kwargs)


def _listed(name: str, given: object) -> dict[str, list[Any]]:
    """Return the items of each modality."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidRequest(f"{name} must be an object like {{'{IMAGE}': ...}}, got {type(given).__name__}.", field=name)
    other = next((key for key, value in given.items() if key not in MODALITIES and value), None)
    if other is not None:
        known = ", ".join(map(repr, MODALITIES))
        raise InvalidRequest(f"{name} of modality {other!r} is not supported, only {known}.", field=name)
    return {modality: _all(items) for modality, items in given.items() if items is not None and modality in MODALITIES}


def _all(items: Any) -> list[Any]:
    return list(items) if isinstance(items, Sequence) and not isinstance(items, bytes | str) else [items]


def _source(modality: str, place: int, item: object, name: object) -> MediaSource:
    where = f"{_FIELD}.{modality}[{place}]"
    uuid = checked_uuid(f"{_UUIDS}.{modality}[{place}]", name)
    if isinstance(item, MediaSource):
        return replace(item, uuid=uuid) if uuid else item
    if item is None and uuid:
        return MediaSource(where=where, uuid=uuid, modality=modality)
    if not isinstance(item, bytes | bytearray | memoryview) or not item:
        kind = "nothing" if item is None else "empty bytes" if item == b"" else type(item).__name__
        raise InvalidRequest(f"{where} must be the bytes of a file, got {kind}.", field=where)
    return MediaSource(where=where, data=bytes(item), uuid=uuid, modality=modality)
