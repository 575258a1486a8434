"""Media of requests, for tests of the engine core."""

from tetrad.services.rpc.columns import pack_u32
from tetrad.v1 import types_pb2

PLACEHOLDER = 77
"""Token id of the places of embeddings."""
IMAGES = [types_pb2.ModalityInfo(modality="image", max_items=4, max_embeds_per_item=64)]


def feature(identifier, offset, length, *, tensors=True, pixels=None, **fields):
    """Return an image of a prompt, of which each token takes an embedding."""
    fields = {"modality": "image", "hash": f"hash of {identifier}", "num_embeds": length} | fields
    message = types_pb2.MultiModalFeature(identifier=identifier, offset=offset, length=length, **fields)
    if tensors:
        pixels = identifier.encode() if pixels is None else pixels
        message.tensors["pixel_values"].dtype = types_pb2.DATA_TYPE_UINT8
        message.tensors["pixel_values"].shape.append(len(pixels))
        message.tensors["pixel_values"].inline = pixels
        message.tensors["sizes"].dtype = types_pb2.DATA_TYPE_INT32
        message.tensors["sizes"].shape.extend((1, 2))
        message.tensors["sizes"].inline = pack_u32([3, 5])
    return message


def prompt_with(last, *features, size=0):
    """Return token ids with places for media, at least `size` of them; the last one is `last`."""
    size = max(size, 1 + max(each.offset + each.length for each in features))
    ids = [200 + place for place in range(size)]
    for each in features:
        ids[each.offset : each.offset + each.length] = [PLACEHOLDER] * each.length
    return [*ids[:-1], last]
