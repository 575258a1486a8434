"""Wire of media: decodes the spans of a prompt's images and the items to encode, and encodes the ends of items."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tetrad.services.errors import InvalidRequest, TetradError
from tetrad.services.rpc.status import to_status
from tetrad.v1 import types_pb2, worker_pb2
from tetrad.worker_svc.api.encoding import EndedItem, RequestedItem
from tetrad.worker_svc.core.device import ModelInfo
from tetrad.worker_svc.core.plan import EncoderItem, MediaSpan

_TYPES = {
    types_pb2.DATA_TYPE_FLOAT32: "<f4",
    types_pb2.DATA_TYPE_INT64: "<i8",
    types_pb2.DATA_TYPE_INT32: "<i4",
    types_pb2.DATA_TYPE_UINT8: "u1",
    types_pb2.DATA_TYPE_BOOL: "?",
}
_AXES = 3


def decode_spans(features: Iterable[types_pb2.MultiModalFeature]) -> tuple[MediaSpan, ...]:
    """Return the places of a prompt's images; raise InvalidRequest for a grid that does not have three sizes."""
    return tuple(map(_decode_span, features))


def _decode_span(feature: types_pb2.MultiModalFeature) -> MediaSpan:
    grid = tuple(feature.grid)
    if len(grid) not in (0, _AXES):
        raise InvalidRequest(f"The grid of a media item has {len(grid)} sizes; it must have {_AXES}.")
    return MediaSpan(
        identifier=feature.identifier,
        modality=feature.modality,
        offset=feature.offset,
        length=feature.length,
        is_embed=np.frombuffer(feature.is_embed, np.uint8) != 0 if feature.is_embed else None,
        num_embeds=feature.num_embeds,
        grid=(grid[0], grid[1], grid[2]) if grid else None,
        time_step=feature.time_step or 1.0,
    )


def decode_items(message: worker_pb2.EncoderInputs) -> list[RequestedItem]:
    """Return the items to encode, with read-only arrays; a tensor that cannot be read is its item's error."""
    return [RequestedItem(item.identifier, item.num_embeds, _decode_item(item)) for item in message.items]


def _decode_item(message: worker_pb2.EncoderItem) -> EncoderItem | TetradError:
    try:
        tensors = {name: _decode_tensor(name, tensor) for name, tensor in message.tensors.items()}
    except InvalidRequest as error:
        return error
    return EncoderItem(message.identifier, message.modality, tensors, message.num_embeds)


def _decode_tensor(name: str, tensor: types_pb2.Tensor) -> npt.NDArray[np.generic]:
    kind = _TYPES.get(tensor.dtype)
    if kind is None or tensor.WhichOneof("payload") != "inline":
        known = ", ".join(types_pb2.DataType.Name(each).removeprefix("DATA_TYPE_").lower() for each in _TYPES)
        raise InvalidRequest(f"Tensor {name[:80]!r} of a media item must be sent inline, in one of the types {known}.")
    # Each access of the field makes a copy of it.
    shape, dtype, content = tuple(tensor.shape), np.dtype(kind), tensor.inline
    if min(shape, default=0) < 0 or len(content) != int(np.prod(shape, dtype=object)) * dtype.itemsize:
        raise InvalidRequest(f"Tensor {name[:80]!r} of shape {list(shape)[:8]} cannot have {len(content)} bytes.")
    return np.frombuffer(content, dtype).reshape(shape)


def encode_ended(ended: EndedItem) -> worker_pb2.EncoderEvents:
    """Return the message of an item that has ended."""
    if ended.error is None:
        return worker_pb2.EncoderEvents(encoded=[ended.identifier])
    failure = worker_pb2.EncoderFailure(identifier=ended.identifier, error=to_status(ended.error))
    return worker_pb2.EncoderEvents(failures=[failure])


def encode_modalities(info: ModelInfo) -> list[types_pb2.ModalityInfo]:
    """Return the messages of the media that a model takes."""
    return [
        types_pb2.ModalityInfo(modality=each.modality, max_embeds_per_item=each.max_embeds_per_item, is_whole=each.is_whole)
        for each in info.modalities
    ]
