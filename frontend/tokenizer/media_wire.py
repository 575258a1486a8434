"""Media wire: converts images to messages for the tokenizer, and its answers to features. It only converts."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tetrad.frontend.media.features import MediaFeature
from tetrad.frontend.media.items import MediaItem
from tetrad.services.errors import InvalidRequest
from tetrad.v1 import tokenizer_pb2, types_pb2

_ITEM_FIELD = re.compile(r"media\[(\d{1,4})\]")

Request = tokenizer_pb2.EncodeRequest | tokenizer_pb2.RenderChatRequest


def set_media(request: Request, items: Sequence[MediaItem], kwargs: Mapping[str, Any] | None) -> None:
    """Write the images of a prompt, and the settings of their processor, into its request."""
    for item in items:
        request.media.add(modality=item.modality, data=item.data, uuid=item.uuid, media_type=item.media_type)
    if items and kwargs:
        request.mm_processor_kwargs_json = json.dumps(kwargs).encode()


def decode_features(messages: Iterable[types_pb2.MultiModalFeature]) -> tuple[MediaFeature, ...]:
    """Return the features of a prompt; their tensors are not copied."""
    return tuple(
        MediaFeature(each.modality, each.identifier, each.offset, each.length, each.ByteSize(), each) for each in messages
    )


def placed_at_source(error: InvalidRequest, items: Sequence[MediaItem]) -> InvalidRequest:
    """Return the tokenizer's error; if it names an image, its field is the image's in the client's request."""
    found = _ITEM_FIELD.match(error.field or "")
    if found and int(found[1]) < len(items):
        error.field = items[int(found[1])].where or error.field
    return error
