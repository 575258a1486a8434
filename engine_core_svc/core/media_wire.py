"""Media of requests, as messages: decodes the features of a request, and encodes their places and inputs for the worker."""

import asyncio
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from tetrad.engine_core_svc.core.media import EncoderEvents, EncoderInput, MediaSpan
from tetrad.services.errors import InvalidRequest, Unsupported
from tetrad.services.message_size import batches
from tetrad.services.rpc.status import from_status
from tetrad.services.rpc.unread_fields import UnreadFields
from tetrad.v1 import types_pb2, worker_pb2

UNREAD_OF_FEATURE = UnreadFields(types_pb2.MultiModalFeature, ("layouts",), owner="This engine")
_FIELD = "mm_features"
_HEAD_BYTES, _SIZE_BYTES = 32, 10
"""Upper bounds of the bytes of tags and lengths of an item or a tensor, and of one size of a shape."""
_ELEMENT_BYTES: Mapping[int, int] = {
    types_pb2.DATA_TYPE_FLOAT32: 4,
    types_pb2.DATA_TYPE_INT64: 8,
    types_pb2.DATA_TYPE_INT32: 4,
    types_pb2.DATA_TYPE_UINT8: 1,
    types_pb2.DATA_TYPE_BOOL: 1,
}
"""The types that workers read."""


class ItemMessage(EncoderInput):
    """An item as a message to the worker. The message must not change: requests share it.

    Args:
        message: asks for this item alone.
        size_bytes: upper bound of the item's bytes: to measure the message itself would copy its tensors.
    """

    __slots__ = ("message",)

    def __init__(self, message: worker_pb2.ExecuteRequest, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.message = message


def decode_span(feature: types_pb2.MultiModalFeature) -> MediaSpan:
    """Return the place of a feature. Raises Unsupported for fields that are not read."""
    UNREAD_OF_FEATURE.refuse(feature)
    return MediaSpan(
        identifier=feature.identifier,
        modality=feature.modality,
        content_hash=feature.hash,
        offset=feature.offset,
        length=feature.length,
        num_embeds=feature.num_embeds,
        is_embed=feature.is_embed,
        grid=tuple(feature.grid),
        time_step=feature.time_step,
    )


def encode_span(span: MediaSpan) -> types_pb2.MultiModalFeature:
    """Return a place without the tensors of its item."""
    return types_pb2.MultiModalFeature(
        modality=span.modality,
        identifier=span.identifier,
        hash=span.content_hash,
        offset=span.offset,
        length=span.length,
        num_embeds=span.num_embeds,
        is_embed=span.is_embed,
        grid=span.grid,
        time_step=span.time_step,
    )


async def decode_inputs(features: Iterable[types_pb2.MultiModalFeature]) -> dict[str, EncoderInput]:
    """Return the items of those features that have tensors, by identifier.

    Other tasks run between two items, as a large one takes 40 ms.

    Raises:
        InvalidRequest: the elements of a tensor do not have its shape.
        Unsupported: a tensor is not in the message itself.
    """
    inputs: dict[str, EncoderInput] = {}
    for feature in features:
        if not feature.tensors or feature.identifier in inputs:
            continue
        await asyncio.sleep(0)
        message = worker_pb2.ExecuteRequest()
        item = message.encoder_inputs.items.add(
            identifier=feature.identifier, modality=feature.modality, num_embeds=feature.num_embeds
        )
        size_bytes = _HEAD_BYTES + item.ByteSize()
        for name, tensor in feature.tensors.items():
            # Copied: a reference to a part of the request's message would keep all of it in memory.
            size_bytes += _HEAD_BYTES + len(name.encode()) + _copy_tensor(name, tensor, item.tensors[name])
        inputs[feature.identifier] = ItemMessage(message, size_bytes)
    return inputs


def encode_items(items: Iterable[EncoderInput]) -> Iterator[worker_pb2.ExecuteRequest]:
    """Yield the messages that ask for these items, in order. Admission has checked that each item fits a message."""
    for batch in batches(items, attrgetter("size_bytes")):
        first, *others = map(_message_of, batch)
        if not others:
            yield first
            continue
        together = [item for message in (first, *others) for item in message.encoder_inputs.items]
        yield worker_pb2.ExecuteRequest(encoder_inputs=worker_pb2.EncoderInputs(items=together))


def decode_events(message: worker_pb2.EncoderEvents) -> EncoderEvents:
    """Return the ends of encodings."""
    return EncoderEvents(
        tuple(message.encoded), {failure.identifier: from_status(failure.error) for failure in message.failures}
    )


def _message_of(item: EncoderInput) -> worker_pb2.ExecuteRequest:
    """Return the message of an item. Raises TypeError for other inputs, which is a bug of the caller."""
    if not isinstance(item, ItemMessage):
        raise TypeError(f"{type(item).__name__} holds no message of an item")
    return item.message


def _copy_tensor(name: str, tensor: types_pb2.Tensor, copy: types_pb2.Tensor) -> int:
    """Copy a tensor, and return an upper bound of its bytes. Raises as `decode_inputs`."""
    payload = tensor.WhichOneof("payload")
    if payload not in (None, "inline"):
        raise Unsupported(f"This engine does not support {payload} of the tensor {name!r}; send it inline.", field=_FIELD)
    shape: Sequence[int] = tensor.shape
    element_bytes = _ELEMENT_BYTES.get(tensor.dtype)
    if element_bytes is None:
        given, *known = (_type_name(each) for each in (tensor.dtype, *_ELEMENT_BYTES))
        text = f"The tensor {name!r} of a media item has the type {given}; the types are {', '.join(known)}."
        raise Unsupported(text, field=_FIELD)
    content = tensor.inline  # each access copies it
    if any(size < 0 for size in shape) or math.prod(shape) * element_bytes != len(content):
        text = f"The tensor {name!r} of shape {list(shape)} cannot have {len(content)} bytes."
        raise InvalidRequest(text, field=_FIELD)
    copy.dtype, copy.inline = tensor.dtype, content
    copy.shape.extend(shape)
    return len(content) + _SIZE_BYTES * len(shape)


def _type_name(dtype: int) -> str:
    return types_pb2.DataType.Name(dtype).removeprefix("DATA_TYPE_").lower()
