"""Fake preprocessing of images: an image of N bytes becomes N placeholder tokens between a start and an end token."""

import hashlib

from tetrad.services.errors import InvalidRequest
from tetrad.services.rpc.columns import pack_u32
from tetrad.v1 import types_pb2

MARK = "<image>"
PLACEHOLDER = 1
IMAGES = (types_pb2.ModalityInfo(modality="image", max_items=8, max_embeds_per_item=64),)


class FakeImages:
    """The image processor of the fake tokenizer; `kept` are the files of images with a name."""

    def __init__(self):
        self.kept = {}

    def expand(self, prompt, media):
        """Return the ids of a prompt with marks, as a u32 column, and the features of its images."""
        texts = prompt.split(MARK)
        if len(texts) - 1 > len(media):
            raise InvalidRequest(
                "Found more '<image>' placeholders in input prompt than actual multimodal data items.", field="media"
            )
        ids, features = list(texts[0].encode()), []
        for place, (item, text) in enumerate(zip(media, texts[1:], strict=True)):
            data = self._file(place, item)
            name = item.uuid or hashlib.sha256(data).hexdigest()
            tensor = types_pb2.Tensor(dtype=types_pb2.DATA_TYPE_UINT8, shape=[len(data)], inline=data)
            features.append(
                types_pb2.MultiModalFeature(
                    modality=item.modality,
                    identifier=name,
                    hash=name,
                    offset=len(ids),
                    length=len(data),
                    num_embeds=len(data),
                    tensors={"pixel_values": tensor},
                )
            )
            ids += [PLACEHOLDER] * len(data) + list(text.encode())
        return pack_u32(ids), features

    def _file(self, place, item):
        if item.data == b"broken":
            raise InvalidRequest(f"Failed to load image {place}: cannot identify image file", field=f"media[{place}]")
        if item.data:
            self.kept[item.uuid] = item.data
        elif item.uuid not in self.kept:
            text = f"Cache miss for image at index {place} but data is not provided."
            raise InvalidRequest(text, field=f"media[{place}]")
        return self.kept[item.uuid]
