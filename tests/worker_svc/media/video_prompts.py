"""Prompts with a video as the tokenizer service sends them: token ids, the span, and 8-bit pixels of the frames."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tests.vision_reference import Prepared, VisionReference
from tetrad.worker_svc.core.plan import EncoderItem, MediaSpan

MERGE, FRAMES = 2, 2
PARTS: Mapping[str, tuple[str, str]] = {
    "qwen2_vl": ("<|vision_start|>", "<|vision_end|>"),
    "qwen2_5_vl": ("<|vision_start|>", "<|vision_end|>"),
    "qwen3_vl": ("<1.5 seconds><|vision_start|>", "<|vision_end|>"),
    "qwen3_vl_moe": ("<1.5 seconds><|vision_start|>", "<|vision_end|>"),
    "qwen3_5": ("<1.5 seconds><|vision_start|>", "<|vision_end|>"),
    "glm4v": ("<|begin_of_image|>", "<|end_of_image|>3"),
    "glm46v": ("<|begin_of_image|>", "<|end_of_image|>1.5 seconds"),
    "smolvlm": ("\nFrame from 00:01:<fake_token_around_image><global-img>", "<fake_token_around_image>"),
    "internvl": ("\nFrame1: <img>", "</img>"),
    "llava_onevision": ("", ""),
}
"""Kind of model -> texts before and behind the embeddings of each time, or of all for those of `WHOLE`."""
WHOLE = frozenset({"qwen2_vl", "qwen2_5_vl", "llava_onevision"})
"""Kinds whose videos are one run of embeddings."""
AROUND = {"glm4v": ("<|begin_of_video|>", "<|end_of_video|>"), "glm46v": ("<|begin_of_video|>", "<|end_of_video|>")}
"""What chat templates write around a video."""


@dataclass(frozen=True)
class VideoPrompt:
    """A prompt; `spans` is the place of its video, `items` the video."""

    prepared: Prepared
    spans: tuple[MediaSpan, ...]
    items: tuple[EncoderItem, ...]

    @property
    def token_ids(self) -> list[int]:
        return self.prepared.token_ids


def video_prompt(
    reference: VisionReference, kind: str, frames: np.ndarray, *, before: str = "A", after: str = "B?", seconds: float = 1.0
) -> VideoPrompt:
    """Return a prompt of text, a video and text.

    Args:
        reference: transformers' model.
        kind: in PARTS.
        frames: [N, 3, H, W] uint8, of a size that the model reads.
        before, after: the texts.
        seconds: between two times of the video, for models whose positions follow them.
    """
    video, config = Video(reference, kind, frames), reference.model.config
    encode = reference.processor.tokenizer.encode
    start, end = AROUND.get(kind, ("", ""))
    ids = encode(before + start, add_special_tokens=False)
    first = 0
    for part in [video.num_embeds] if kind in WHOLE else [video.num_embeds // video.times] * video.times:
        ids += encode(PARTS[kind][0], add_special_tokens=False)
        first = first or len(ids)
        ids += [video.mark_id] * part
        last = len(ids)
        ids += encode(PARTS[kind][1], add_special_tokens=False)
    ids += encode(end + after, add_special_tokens=False)
    is_embed = np.array(ids[first:last]) == video.mark_id
    step = 1.0
    inputs: dict[str, Any] = {"input_ids": torch.tensor([ids]), **video.tensors}
    if kind == "qwen2_5_vl":
        step = float(np.float32(config.vision_config.tokens_per_second) * np.float32(seconds))
        inputs["second_per_grid_ts"] = torch.tensor([seconds])
    if video.grid is not None:
        kinds = torch.zeros(1, len(ids), dtype=torch.int)
        kinds[0, first:last] = torch.from_numpy(is_embed) * 2
        inputs["mm_token_type_ids"] = kinds
    tensors = {name: np.asarray(each) for name, each in video.given.items()}
    span = MediaSpan(
        "v", "video", first, last - first, None if is_embed.all() else is_embed, video.num_embeds, video.grid, step
    )
    return VideoPrompt(Prepared("", ids, {}, inputs), (span,), (EncoderItem("v", "video", tensors, video.num_embeds),))


class Video:
    """The frames as a model's processor would return them, and as the tokenizer service sends them.

    Attributes:
        tensors: arguments of transformers' model.
        given: tensors of the item.
        grid: times, rows and columns of the embeddings; None: the model has no positions on axes.
        mark_id: id of the token that an embedding replaces.
        times, num_embeds: numbers of times and of embeddings.
    """

    def __init__(self, reference: VisionReference, kind: str, frames: np.ndarray) -> None:
        config, its = reference.model.config, reference.processor.image_processor
        mean, std = (np.asarray(each, np.float32)[:, None, None] for each in (its.image_mean, its.image_std))
        normal = (frames.astype(np.float64) * its.rescale_factor).astype(np.float32)
        normal = (normal - mean) / std
        self.grid: tuple[int, int, int] | None = None
        self.mark_id = config.image_token_id
        if kind in ("smolvlm", "internvl", "llava_onevision"):
            self._set_frames(reference, kind, frames, normal)
            return
        side = its.patch_size
        rows, sizes = patches(frames, side)
        self.given = {"pixel_values_videos": rows, "video_grid_thw": np.array(sizes)}
        pixels = torch.from_numpy(patches(normal, side)[0])
        self.tensors = {"pixel_values_videos": pixels, "video_grid_thw": torch.tensor([sizes])}
        self.grid = (sizes[0], sizes[1] // MERGE, sizes[2] // MERGE)
        self.times, self.num_embeds = sizes[0], int(np.prod(self.grid))
        if kind.startswith("qwen"):
            self.mark_id = config.video_token_id

    def _set_frames(self, reference: VisionReference, kind: str, frames: np.ndarray, normal: np.ndarray) -> None:
        model, pixels = reference.model, torch.from_numpy(normal)
        self.given = {"pixel_values_videos": frames}
        if kind == "llava_onevision":
            self.tensors, self.mark_id = {"pixel_values_videos": pixels[None]}, model.config.video_token_id
            with torch.no_grad():
                self.num_embeds = model.get_video_features(pixels[None]).pooler_output.shape[1]
        else:
            self.tensors = {"pixel_values": pixels[None] if kind == "smolvlm" else pixels}
            with torch.no_grad():
                rows = model.get_image_features(**self.tensors).pooler_output
            self.num_embeds = sum(map(len, rows))  # of each frame [N, hidden]
        self.times = len(frames)


def patches(frames: np.ndarray, side: int) -> tuple[np.ndarray, list[int]]:
    """Return rows of patches of frames [N, 3, H, W] and their grid; see `patchify` of transformers' video processors."""
    if len(frames) % FRAMES:
        frames = np.concatenate([frames, frames[-1:]])
    count, channels, height, width = frames.shape
    times, rows, cols = count // FRAMES, height // side, width // side
    shaped = frames.reshape(times, FRAMES, channels, rows // MERGE, MERGE, side, cols // MERGE, MERGE, side)
    ordered = shaped.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return ordered.reshape(times * rows * cols, -1), [times, rows, cols]
