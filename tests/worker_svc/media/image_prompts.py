"""Prompts with images as the tokenizer service sends them: token ids, spans, and 8-bit pixels of each image."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.vision_reference import Prepared, VisionReference
from tetrad.services.rpc.columns import pack_u32
from tetrad.v1 import types_pb2, worker_pb2
from tetrad.worker_svc.core.plan import EncoderItem, MediaSpan

_TYPES = {np.dtype("u1"): types_pb2.DATA_TYPE_UINT8, np.dtype("i8"): types_pb2.DATA_TYPE_INT64}


@dataclass(frozen=True)
class ImagePrompt:
    """A prompt; `items` are its images, and `spans` their places."""

    prepared: Prepared
    spans: tuple[MediaSpan, ...]
    items: tuple[EncoderItem, ...]

    @property
    def token_ids(self) -> list[int]:
        return self.prepared.token_ids


def image_prompt(reference: VisionReference, images: Sequence[bytes], before: str = "A", after: str = "B?") -> ImagePrompt:
    """Return a prompt of text, images one behind another, and text."""
    parts = [{"type": "text", "text": before}, *({"type": "image"} for _ in images), {"type": "text", "text": after}]
    prepared = reference.prepare([{"role": "user", "content": parts}], images)
    places = np.flatnonzero(np.array(prepared.token_ids) == reference.model.config.image_token_id)
    spans, items = [], []
    for data in images:
        count = len(reference.embeddings(reference.prepare([{"role": "user", "content": [{"type": "image"}]}], [data])))
        its, places = places[:count], places[count:]
        tensors = item_tensors(reference, data)
        identifier = f"{hash(data):x}"
        items.append(EncoderItem(identifier, "image", tensors, count))
        spans.append(_span(reference, identifier, its, tensors))
    assert not len(places)
    return ImagePrompt(prepared, tuple(spans), tuple(items))


def item_tensors(reference: VisionReference, data: bytes) -> dict[str, np.ndarray]:
    """Return an image's tensors as transformers' processor makes them, but for pixels, which stay 8-bit and without a batch."""
    messages = [{"role": "user", "content": [{"type": "image"}]}]
    made = reference.prepare(messages, [data], do_rescale=False, do_normalize=False).tensors
    tensors = {name: np.asarray(each) for name, each in made.items()}
    pixels = tensors["pixel_values"].astype(np.uint8)
    if "image_grid_thw" in tensors:
        processor = reference.processor.image_processor
        rows = pixels.reshape(len(pixels), 3, processor.temporal_patch_size, -1)
        return tensors | {"pixel_values": rows[:, :, 0].reshape(len(rows), -1)}
    if pixels.ndim == 5:
        return {name: array[0] for name, array in (tensors | {"pixel_values": pixels}).items()}
    return tensors | {"pixel_values": pixels}


def _span(reference: VisionReference, identifier: str, places: np.ndarray, tensors: dict[str, np.ndarray]) -> MediaSpan:
    offset, length = int(places[0]), int(places[-1] - places[0]) + 1
    is_embed = np.zeros(length, np.bool_)
    is_embed[places - offset] = True
    grid = None
    if "image_grid_thw" in tensors:
        frames, rows, columns = tensors["image_grid_thw"].reshape(3).tolist()
        merge = reference.processor.image_processor.merge_size
        grid = (frames, rows // merge, columns // merge)
    return MediaSpan(identifier, "image", offset, length, None if is_embed.all() else is_embed, len(places), grid)


def feature(span: MediaSpan) -> types_pb2.MultiModalFeature:
    """Return the message of a span."""
    return types_pb2.MultiModalFeature(
        modality=span.modality,
        identifier=span.identifier,
        hash=span.identifier,
        offset=span.offset,
        length=span.length,
        is_embed=b"" if span.is_embed is None else span.is_embed.astype(np.uint8).tobytes(),
        num_embeds=span.num_embeds,
        grid=span.grid or (),
    )


def encoder_inputs(items: Sequence[EncoderItem]) -> worker_pb2.ExecuteRequest:
    """Return the message that requests items."""
    messages = [
        worker_pb2.EncoderItem(
            identifier=item.identifier,
            modality=item.modality,
            tensors={name: _tensor(array) for name, array in item.tensors.items()},
            num_embeds=item.num_embeds,
        )
        for item in items
    ]
    return worker_pb2.ExecuteRequest(encoder_inputs=worker_pb2.EncoderInputs(items=messages))


def _tensor(array: np.ndarray) -> types_pb2.Tensor:
    return types_pb2.Tensor(dtype=_TYPES[array.dtype], shape=array.shape, inline=array.tobytes())


def blocks(first: int, count: int) -> list[bytes]:
    """Return a block table of one group."""
    return [pack_u32(list(range(first, first + count)))]
