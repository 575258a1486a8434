"""Families: how the models of each family write a video in a prompt, and how their video processors read one.

The rules follow `replace_video_token` of transformers' processors (models/*/processing_*.py), so that prompts have the same
tokens. A rule reads facts of the model and of one processed video.
"""

import datetime
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tetrad.services.models.video_files import MOST_VIDEO_EMBEDS
from tetrad.tokenizer_svc.media.items import Expansion, Grid, ProcessedItem
from tetrad.tokenizer_svc.media.model_files import ModelFiles
from tetrad.tokenizer_svc.media.video.number_words import in_words
from tetrad.tokenizer_svc.media.video.timing import Timing
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer

_PIXELS, _GRID, _TIMING = "pixel_values_videos", "video_grid_thw", "timing"
_IMAGE_KEYS, _VIDEO_KEYS = ("image_token_id", "image_token_index"), ("video_token_id", "video_token_index")
_CLIP = {"resample": 3}
_LANCZOS = {"resample": 1}


class VideoModel(ModelFiles):
    """The facts that a family's rules read.

    Args:
        tokenizer: the model's tokenizer.
        settings: of the video processor.
        keys: of config.json, of which one has the id of the token that an embedding replaces.

    Attributes:
        settings: as given.
        mark_id, mark: id and text of that token.

    Raises ModelError if config.json names no such token.
    """

    def __init__(self, tokenizer: Tokenizer, settings: Mapping[str, Any], keys: tuple[str, ...]) -> None:
        super().__init__(tokenizer)
        self.settings = settings
        self.mark_id, self.mark = self.mark_of(keys)


def _no_grid(*_: object) -> Grid | None:
    return None


def _one_step(*_: object) -> float:
    return 0.0


@dataclass(frozen=True)
class VideoFamily:
    """The rules of a family.

    Attributes:
        rule: how frames are resized; see sizes.py.
        expand: returns what replaces a video's placeholder.
        max_embeds: returns the number of embeddings of the largest video.
        placeholder: text of a video before it is expanded.
        before, behind: what chat templates write around it.
        settings: of the video processor, if the model's files have no others.
        kwargs: settings that a request may change.
        fps, least_frames: see Sampling.
        is_image: whether an embedding replaces the token of images, not of videos.
        grid: returns times, rows and columns of the embeddings, for models whose positions have three axes.
        time_step: returns the positions between two times of the grid; 0: one.
    """

    rule: str
    expand: Callable[[VideoModel, ProcessedItem], Expansion]
    max_embeds: Callable[[VideoModel], int]
    placeholder: str
    before: str = ""
    behind: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    kwargs: tuple[str, ...] = ("size", "do_resize")
    fps: float = -1.0
    least_frames: int = 1
    is_image: bool = False
    grid: Callable[[VideoModel, ProcessedItem], Grid | None] = _no_grid
    time_step: Callable[[VideoModel, ProcessedItem], float] = _one_step

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of config.json for the token that an embedding replaces."""
        return _IMAGE_KEYS if self.is_image else _VIDEO_KEYS


def timing_of(video: ProcessedItem) -> Timing:
    """Return the timing of a processed video."""
    fps_bits, duration_bits, total, *indices = video.integers(_TIMING)
    fps, duration = struct.unpack("<dd", struct.pack("<qq", fps_bits, duration_bits))
    return Timing(total, fps, duration, indices)


def _grid(model: VideoModel, video: ProcessedItem) -> Grid:
    times, rows, cols = video.integers(_GRID)
    merge = model.settings["merge_size"]
    return times, rows // merge, cols // merge


def _most_in_grid(_: VideoModel) -> int:
    return MOST_VIDEO_EMBEDS


def _expand_whole(model: VideoModel, video: ProcessedItem) -> Expansion:
    return Expansion(model.mark, 1, math.prod(_grid(model, video)))


def _tokens_per_second(model: VideoModel, video: ProcessedItem) -> float:
    """Return the positions for the time between two embeddings, in float32 as transformers computes them."""
    import numpy as np

    seconds = np.float32(model.settings["temporal_patch_size"] / timing_of(video).read_fps)
    return float(np.float32(model.vision.get("tokens_per_second", 4)) * seconds)


def _times(model: VideoModel, video: ProcessedItem) -> list[float]:
    """Return the mean of the seconds of the first and the last frame of each time."""
    seconds, frames = timing_of(video).seconds, model.settings["temporal_patch_size"]
    seconds += seconds[-1:] * (-len(seconds) % frames)
    return [(seconds[first] + seconds[first + frames - 1]) / 2 for first in range(0, len(seconds), frames)]


def _expand_qwen3(model: VideoModel, video: ProcessedItem) -> Expansion:
    times, rows, cols = _grid(model, video)
    start, end = model.named("vision_start_token", "<|vision_start|>"), model.named("vision_end_token", "<|vision_end|>")
    text = "".join(f"<{second:.1f} seconds>{start}{model.mark}{end}" for second in _times(model, video))
    return Expansion(text, times, rows * cols)


def _expand_glm(write: Callable[[float], str]) -> Callable[[VideoModel, ProcessedItem], Expansion]:
    """Return the rule of a GLM; `write` gives the text of a time."""

    def expand(model: VideoModel, video: ProcessedItem) -> Expansion:
        times, rows, cols = _grid(model, video)
        seconds = timing_of(video).seconds[::2][:times]
        seconds += seconds[-1:] * (times - len(seconds))
        text = "".join(f"<|begin_of_image|>{model.mark}<|end_of_image|>{write(second)}" for second in seconds)
        return Expansion(text, times, rows * cols)

    return expand


def _expand_smolvlm(model: VideoModel, video: ProcessedItem) -> Expansion:
    timing, count = timing_of(video), video.shape(_PIXELS)[0]
    fake = model.named("fake_image_token", "<fake_token_around_image>")
    whole = model.named("global_image_token", "<global-img>")
    duration = str(datetime.timedelta(seconds=int(timing.duration)))
    intro = f"You are provided the following series of {in_words(count)} frames from a {duration} [H:MM:SS] video.\n"
    frames = "".join(
        f"\nFrame from {int(second // 60):02d}:{int(second % 60):02d}:{fake}{whole}{model.mark}{fake}"
        for second in timing.seconds
    )
    return Expansion(f"{intro}{frames}\n\n", count, _tile_embeds(model))


def _tile_embeds(model: VideoModel) -> int:
    given = model.processor.get("image_seq_len")
    if given is not None:
        return int(given)
    side = model.vision["image_size"] // model.vision["patch_size"]
    return int(side**2 / model.config.get("scale_factor", 2) ** 2)


def _most_tiles(model: VideoModel) -> int:
    return min(MOST_VIDEO_EMBEDS, 768 * _tile_embeds(model))


def _expand_internvl(model: VideoModel, video: ProcessedItem) -> Expansion:
    start, end = model.named("start_image_token", "<img>"), model.named("end_image_token", "</img>")
    count = video.shape(_PIXELS)[0]
    text = "\n".join(f"Frame{frame + 1}: {start}{model.mark}{end}" for frame in range(count))
    return Expansion(text, count, _seq_length(model))


def _seq_length(model: VideoModel) -> int:
    return int(model.processor.get("image_seq_length") or model.config.get("image_seq_length") or 256)


def _most_sequences(model: VideoModel) -> int:
    return min(MOST_VIDEO_EMBEDS, 768 * _seq_length(model))


def _expand_onevision(model: VideoModel, video: ProcessedItem) -> Expansion:
    return Expansion(model.mark, 1, video.shape(_PIXELS)[0] * _pooled(model) + 1)


def _pooled(model: VideoModel) -> int:
    """Return the number of embeddings of a frame, of which each is of two by two patches."""
    count = model.processor.get("num_image_tokens")
    side = math.isqrt(count) if count else model.vision["image_size"] // model.vision["patch_size"]
    return math.ceil(side / 2) ** 2


def _most_pooled(model: VideoModel) -> int:
    return min(MOST_VIDEO_EMBEDS, 768 * _pooled(model) + 1)


_QWEN_TEXTS: Mapping[str, Any] = {"placeholder": "<|video_pad|>", "before": "<|vision_start|>", "behind": "<|vision_end|>"}
_GLM_TEXTS: Mapping[str, Any] = {"placeholder": "<|video|>", "before": "<|begin_of_video|>", "behind": "<|end_of_video|>"}
_IN_GRID: Mapping[str, Any] = {"temporal_patch_size": 2, "merge_size": 2, **_CLIP}
_PIXEL_LIMITS = ("size", "min_pixels", "max_pixels", "do_resize")
_QWEN2: Mapping[str, Any] = {
    "rule": "frames in grid",
    "expand": _expand_whole,
    "max_embeds": _most_in_grid,
    "settings": {**_IN_GRID, "patch_size": 14, "size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 28 * 28 * 768}},
    "kwargs": _PIXEL_LIMITS,
    "fps": 2.0,
    "least_frames": 4,
    "grid": _grid,
    **_QWEN_TEXTS,
}
_QWEN3 = VideoFamily(
    "video in grid",
    _expand_qwen3,
    _most_in_grid,
    settings={**_IN_GRID, "patch_size": 16, "size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768}},
    kwargs=_PIXEL_LIMITS,
    fps=2.0,
    least_frames=4,
    grid=_grid,
    **_QWEN_TEXTS,
)
_GLM: Mapping[str, Any] = {
    "rule": "video in grid",
    "max_embeds": _most_in_grid,
    "settings": {**_IN_GRID, "patch_size": 14, "size": {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 2 * 30000}},
    "fps": 2.0,
    "is_image": True,
    "grid": _grid,
    **_GLM_TEXTS,
}
_GLM4V = VideoFamily(expand=_expand_glm(lambda second: str(int(second))), **_GLM)

FAMILIES: Mapping[str, VideoFamily] = {
    "glm46v": VideoFamily(expand=_expand_glm(lambda second: f"{second:.1f} seconds"), **_GLM),
    "glm4v": _GLM4V,
    "glm4v_moe": _GLM4V,
    "internvl": VideoFamily(
        "settings",
        _expand_internvl,
        _most_sequences,
        "<video>",
        settings={**_CLIP, "size": {"height": 384, "width": 384}},
        kwargs=(),
        is_image=True,
    ),
    "llava_onevision": VideoFamily(
        "settings",
        _expand_onevision,
        _most_pooled,
        "<video>",
        settings={**_CLIP, "size": {"height": 384, "width": 384}},
        kwargs=(),
    ),
    "qwen2_5_vl": VideoFamily(**_QWEN2, time_step=_tokens_per_second),
    "qwen2_vl": VideoFamily(**_QWEN2),
    "qwen3_5": _QWEN3,
    "qwen3_5_moe": _QWEN3,
    "qwen3_vl": _QWEN3,
    "qwen3_vl_moe": _QWEN3,
    "smolvlm": VideoFamily(
        "tile",
        _expand_smolvlm,
        _most_tiles,
        "<video>",
        settings={**_LANCZOS, "size": {"longest_edge": 4 * 364}, "max_image_size": {"longest_edge": 364}},
        kwargs=(),
        fps=1.0,
        is_image=True,
    ),
}
"""Families by config.json's model_type."""


def family_of(files: ModelFiles) -> VideoFamily | None:
    """Return the family of a model; None if it reads no videos."""
    return FAMILIES.get(str(files.config.get("model_type")))
