"""Media wire: converts the media of requests and the features of responses. Only the files of this room know protobuf."""

from collections.abc import Iterable
from dataclasses import dataclass

from tetrad.services.errors import InvalidRequest
from tetrad.tokenizer_svc.images.items import ImageItem, PlacedImage
from tetrad.tokenizer_svc.images.prompts import MediaLimits
from tetrad.v1 import tokenizer_pb2, types_pb2

_DTYPES = {"uint8": types_pb2.DATA_TYPE_UINT8, "int64": types_pb2.DATA_TYPE_INT64}
_INTERNAL = frozenset({"rows", "cols", "num_patches", "num_crops"})
"""Tensors that only the expansion of placeholders needs."""


@dataclass(frozen=True)
class RequestMedia:
    """The media of a request.

    Attributes:
        items: the images.
        kwargs_json: settings of the image processor; empty: none.
    """

    items: list[ImageItem]
    kwargs_json: str


def media_bytes(request: tokenizer_pb2.EncodeRequest | tokenizer_pb2.RenderChatRequest) -> int:
    """Return the size of a request's files."""
    return sum(len(item.data) for item in request.media)


def decode_media(request: tokenizer_pb2.EncodeRequest | tokenizer_pb2.RenderChatRequest) -> RequestMedia:
    """Return the media of a request. Raises InvalidRequest for other media than images, and for settings without media."""
    field = "mm_processor_kwargs_json"
    if isinstance(request, tokenizer_pb2.EncodeRequest) and request.media and len(request.texts) != 1 and not request.token_ids:
        raise InvalidRequest(f"media belong to one text; texts has {len(request.texts)}.", field="texts")
    if request.mm_processor_kwargs_json and not request.media:
        raise InvalidRequest(f"{field} has settings for media, but the request has no media.", field=field)
    for i, item in enumerate(request.media):
        if item.modality != "image":
            raise InvalidRequest(f"media {i} has the modality {item.modality!r}; only 'image' is taken.", field=f"media[{i}]")
        if not item.data and not item.uuid:
            raise InvalidRequest(f"media {i} has neither data nor a uuid.", field=f"media[{i}]")
    items = [ImageItem(item.data, item.uuid, item.media_type) for item in request.media]
    try:
        return RequestMedia(items, request.mm_processor_kwargs_json.decode())
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{field} is not UTF-8: {error}.", field=field) from error


def encode_features(placed: Iterable[PlacedImage]) -> list[types_pb2.MultiModalFeature]:
    """Return the images of a prompt as messages."""
    return [_encode_feature(each) for each in placed]


def encode_media_limits(limits: Iterable[MediaLimits]) -> list[types_pb2.ModalityInfo]:
    """Return limits of media as messages."""
    return [
        types_pb2.ModalityInfo(modality=each.name, max_items=each.max_items, max_embeds_per_item=each.max_embeds)
        for each in limits
    ]


def _encode_feature(placed: PlacedImage) -> types_pb2.MultiModalFeature:
    feature = placed.feature
    message = types_pb2.MultiModalFeature(
        modality="image",
        identifier=feature.identifier,
        hash=feature.identifier,
        offset=placed.offset,
        length=placed.length,
        is_embed=placed.is_embed,
        num_embeds=feature.expansion.num_embeds,
        grid=feature.grid or (),
    )
    for name, (dtype, shape, data) in feature.image.tensors.items():
        if name not in _INTERNAL:
            tensor = message.tensors[name]
            tensor.dtype, tensor.inline = _DTYPES[dtype], data
            tensor.shape.extend(shape)
    return message
