"""Prompts with images as the tokenizer service sends them: token ids, spans, and 8-bit pixels of each image."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.vision_reference import Prepared, VisionReference
from tetrad.worker_svc.core.plan import EncoderItem, MediaSpan


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
    # LLaVA-OneVision preprocesses an image otherwise whose prompt has several: here it is beside itself.
    copies = 2 if len(images) > 1 and "batch_num_images" in prepared.tensors else 1
    for data in images:
        count = len(reference.embeddings(reference.prepare(_images(copies), [data] * copies))) // copies
        its, places = places[:count], places[count:]
        tensors = item_tensors(reference, data, copies)
        identifier = f"{hash((data, copies)):x}"
        items.append(EncoderItem(identifier, "image", tensors, count))
        spans.append(_span(reference, identifier, its, tensors))
    assert not len(places)
    return ImagePrompt(prepared, tuple(spans), tuple(items))


def item_tensors(reference: VisionReference, data: bytes, copies: int = 1) -> dict[str, np.ndarray]:
    """Return an image's tensors as transformers' processor makes them, but for pixels, which stay 8-bit and without a batch.

    Args:
        reference: the model's processor.
        data: the image's file.
        copies: how many images of the same file are preprocessed together; the tensors are those of the first.
    """
    made = reference.prepare(_images(copies), [data] * copies, do_rescale=False, do_normalize=False).tensors
    tensors = {name: np.asarray(each) for name, each in made.items()}
    pixels = tensors["pixel_values"].astype(np.uint8)
    if "image_grid_thw" in tensors:
        processor = reference.processor.image_processor
        rows = pixels.reshape(len(pixels), 3, processor.temporal_patch_size, -1)
        return tensors | {"pixel_values": rows[:, :, 0].reshape(len(rows), -1)}
    if pixels.ndim == 5:
        return {name: array[0] for name, array in (tensors | {"pixel_values": pixels}).items()}
    return tensors | {"pixel_values": pixels}


def _images(count: int) -> list[dict[str, Any]]:
    """Return messages with images and no text."""
    return [{"role": "user", "content": [{"type": "image"}] * count}]


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
