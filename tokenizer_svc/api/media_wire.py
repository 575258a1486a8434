"""Media wire: converts the media of requests and the features of responses. Only the files of this room know protobuf."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tetrad.services.errors import InvalidRequest
from tetrad.tokenizer_svc.media.items import MediaInput, PlacedMedia
from tetrad.tokenizer_svc.media.prompts import MediaLimits
from tetrad.v1 import tokenizer_pb2, types_pb2

_DTYPES = {"float32": types_pb2.DATA_TYPE_FLOAT32, "uint8": types_pb2.DATA_TYPE_UINT8, "int64": types_pb2.DATA_TYPE_INT64}
_INTERNAL = frozenset({"rows", "cols", "num_patches", "num_crops", "timing"})
"""Tensors that only the expansion of placeholders needs."""
_FEATURE_BYTES, _TENSOR_BYTES = 512, 128
"""Upper bounds of the bytes of a feature and of a tensor without their content."""


@dataclass(frozen=True)
class RequestMedia:
    """The media of a request.

    Attributes:
        items: images, audio and video in their order.
        kwargs_json: settings of their processors; empty: none.
        io_kwargs_json: settings of reading their files; empty: none.
    """

    items: list[MediaInput]
    kwargs_json: str
    io_kwargs_json: str


def media_bytes(request: tokenizer_pb2.EncodeRequest | tokenizer_pb2.RenderChatRequest) -> int:
    """Return the size of a request's files."""
    return sum(len(item.data) for item in request.media)


def num_media(request: tokenizer_pb2.EncodeRequest | tokenizer_pb2.RenderChatRequest) -> dict[str, int]:
    """Return the number of a request's items by modality."""
    return dict(Counter(item.modality for item in request.media))


def decode_media(request: tokenizer_pb2.EncodeRequest | tokenizer_pb2.RenderChatRequest) -> RequestMedia:
    """Return the media of a request. Raises InvalidRequest for items without content, and for settings without media."""
    if isinstance(request, tokenizer_pb2.EncodeRequest) and request.media and len(request.texts) != 1 and not request.token_ids:
        raise InvalidRequest(f"media belong to one text; texts has {len(request.texts)}.", field="texts")
    settings = {name: getattr(request, name) for name in ("mm_processor_kwargs_json", "media_io_kwargs_json")}
    for field, value in settings.items():
        if value and not request.media:
            raise InvalidRequest(f"{field} has settings for media, but the request has no media.", field=field)
    for i, item in enumerate(request.media):
        if not item.data and not item.uuid:
            raise InvalidRequest(f"media {i} has neither data nor a uuid.", field=f"media[{i}]")
    items = [MediaInput(item.modality, item.data, item.uuid, item.media_type, item.is_embeds) for item in request.media]
    return RequestMedia(items, *(_decode_text(field, value) for field, value in settings.items()))


def _decode_text(field: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{field} is not UTF-8: {error}.", field=field) from error


def features_bytes(placed: Iterable[PlacedMedia]) -> int:
    """Return an upper bound of the bytes that the media of a prompt add to a message; their tensors are not copied."""
    return sum(
        _FEATURE_BYTES + len(each.is_embed) + sum(_TENSOR_BYTES + len(data) for _, _, data in _sent_tensors(each).values())
        for each in placed
    )


def write_features(
    response: tokenizer_pb2.EncodeResponse | tokenizer_pb2.RenderChatResponse, placed: Iterable[PlacedMedia]
) -> None:
    """Write the media of a response's only prompt into it: the only copy of their tensors. Takes 20 ms for a large image."""
    prompt = response.encodings[0] if isinstance(response, tokenizer_pb2.EncodeResponse) else response
    for each in placed:
        write_feature(prompt.mm_features.add(), each)


def encode_media_limits(limits: Iterable[MediaLimits]) -> list[types_pb2.ModalityInfo]:
    """Return limits of media as messages."""
    return [
        types_pb2.ModalityInfo(modality=each.modality, max_items=each.max_items, max_embeds_per_item=each.max_embeds)
        for each in limits
    ]


def _sent_tensors(placed: PlacedMedia) -> Mapping[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: column for name, column in placed.feature.item.tensors.items() if name not in _INTERNAL}


def write_feature(message: types_pb2.MultiModalFeature, placed: PlacedMedia) -> None:
    """Write an item of a prompt into its message: the only copy of its tensors."""
    feature = placed.feature
    message.modality, message.identifier, message.hash = feature.modality, feature.identifier, feature.identifier
    message.offset, message.length, message.is_embed = placed.offset, placed.length, placed.is_embed
    message.num_embeds = feature.expansion.num_embeds
    message.grid.extend(feature.grid or ())
    message.time_step = feature.time_step
    for name, (dtype, shape, data) in _sent_tensors(placed).items():
        tensor = message.tensors[name]
        tensor.dtype, tensor.inline = _DTYPES[dtype], data
        tensor.shape.extend(shape)
