"""Media wire: converts images to messages for the tokenizer, and its answers to features. It only converts."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tetrad.frontend.media.features import MediaFeature
from tetrad.frontend.media.items import MediaItem
from tetrad.services.errors import InvalidRequest
from tetrad.v1 import tokenizer_pb2, types_pb2

_FIELD = "media"
_ITEM = re.compile(r"media\[(\d{1,6})\]")
_MISSING = "Cache miss for "
_JSON = "_json"
_FEATURE_BYTES, _TENSOR_BYTES = 256, 128
"""Upper bounds of the bytes of a feature and of a tensor without names and content."""
_ELEMENT_BYTES = {types_pb2.DATA_TYPE_UINT8: 1, types_pb2.DATA_TYPE_BOOL: 1, types_pb2.DATA_TYPE_FLOAT32: 4}
"""Bytes of an element; those of other types have at most 8."""

Request = tokenizer_pb2.EncodeRequest | tokenizer_pb2.RenderChatRequest


def set_media(
    request: Request,
    items: Sequence[MediaItem],
    kwargs: Mapping[str, Any] | None,
    io_kwargs: Mapping[str, Any] | None = None,
) -> None:
    """Write the media of a prompt, the settings of their processors, and how files are read, into its request."""
    for item in items:
        request.media.add(
            modality=item.modality, data=item.data, uuid=item.uuid, media_type=item.media_type, is_embeds=item.is_embeds
        )
    if items and kwargs:
        request.mm_processor_kwargs_json = json.dumps(kwargs).encode()
    if items and io_kwargs:
        request.media_io_kwargs_json = json.dumps(io_kwargs).encode()


def decode_features(messages: Iterable[types_pb2.MultiModalFeature]) -> tuple[MediaFeature, ...]:
    """Return the features of a prompt; their tensors are not copied."""
    return tuple(
        MediaFeature(each.modality, each.identifier, each.offset, each.length, _num_bytes(each), each) for each in messages
    )


def _num_bytes(feature: types_pb2.MultiModalFeature) -> int:
    """Return an upper bound of a feature's bytes. To measure the message itself would copy its tensors."""
    tensors = feature.tensors.values()
    names = len(feature.identifier.encode()) + len(feature.hash.encode()) + len(feature.is_embed)
    return _FEATURE_BYTES + names + sum(_TENSOR_BYTES + _ELEMENT_BYTES.get(t.dtype, 8) * math.prod(t.shape) for t in tensors)


def placed_at_source(error: InvalidRequest, items: Sequence[MediaItem], default: str) -> InvalidRequest:
    """Return the tokenizer's error with the field of the client's request: that of the image, if the error names one.

    Args:
        error: the tokenizer's error.
        items: the images of the call.
        default: the field of an error that has none.
    """
    # The public API has the other fields without the suffix of the internal message.
    error.field = (error.field or default).removesuffix(_JSON)
    found = _ITEM.fullmatch(error.field)
    if found or error.field == _FIELD:
        place = int(found[1]) if found else 0 if len(items) == 1 else len(items)
        error.field = items[place].where if place < len(items) else default
    return error


def names_missing_image(error: InvalidRequest) -> bool:
    """Return whether a tokenizer refused a call because it has not kept an image that the call names only."""
    return error.message.startswith(_MISSING)
