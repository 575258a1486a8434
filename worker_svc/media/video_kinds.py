"""Video kinds: how the vision model of each architecture reads the frames of a video.

A video is encoded in parts, each of one position in time: vision models do not relate frames to each other, so the embeddings
are those of the whole video, in the memory of one part. The calls are those of transformers' `get_video_features`, or of
`get_image_features` for models whose videos are series of images. Loads nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from tetrad.services.errors import InvalidRequest
from tetrad.services.models.video_files import MOST_VIDEO_EMBEDS
from tetrad.worker_svc.core.plan import EncoderItem
from tetrad.worker_svc.media.pixels import Normalization
from tetrad.worker_svc.media.reader import Inputs
from tetrad.worker_svc.media.tower_kinds import number_triple, tensor_of

PIXELS, GRID = "pixel_values_videos", "video_grid_thw"
_IMAGE_PIXELS = "pixel_values"
_MOST_FRAMES = 768
"""Largest number of frames that video processors of transformers read."""


class VideoKind(NamedTuple):
    """How an architecture's vision model reads a video.

    Attributes:
        parts: yields the arguments for each part, from an item, the settings of the video processor and its normalisation.
        method: name of the model's method that encodes a part.
        part_embeds: returns the largest number of embeddings of a part, from the settings and the model's config.
        num_end_rows: number of rows at the end of each part of which the video keeps only those of the last part.
    """

    parts: Callable[[EncoderItem, Any, Normalization], Iterator[Inputs]]
    method: str
    part_embeds: Callable[[Mapping[str, Any], Any], int]
    num_end_rows: int = 0

    def largest(self, settings: Mapping[str, Any], config: Any) -> int:
        """Return the largest number of embeddings of a video."""
        return min(MOST_VIDEO_EMBEDS, _MOST_FRAMES * self.part_embeds(settings, config))


def _grid_parts(item: EncoderItem, settings: Mapping[str, Any], normal: Normalization) -> Iterator[Inputs]:
    """Rows of patches [patches, channels * frames * patch * patch] in the order of time, and a grid."""
    side, frames = int(settings.get("patch_size", 14)), int(settings.get("temporal_patch_size", 2))
    times, height, width = number_triple(item, GRID)
    rows = height * width
    array = tensor_of(item, PIXELS, times * rows, normal.num_channels * frames * side * side)
    grid = torch.tensor([[1, height, width]])
    for start in range(0, times * rows, rows):
        part = array[start : start + rows].reshape(rows, normal.num_channels, -1)
        yield {PIXELS: torch.from_numpy(normal.of(part, 1).reshape(rows, -1)), GRID: grid}


def _frames(item: EncoderItem, name: str, normal: Normalization) -> Iterator[torch.Tensor]:
    """Yield the frames [1, 3, H, W] of a tensor [frames, 3, H, W]."""
    array = tensor_of(item, name, -1, normal.num_channels, -1, -1)
    for frame in range(len(array)):
        yield torch.from_numpy(normal.of(array[frame : frame + 1], 1))


def _image_parts(item: EncoderItem, _settings: Mapping[str, Any], normal: Normalization) -> Iterator[Inputs]:
    """Frames, each of which is read as an image."""
    return ({_IMAGE_PIXELS: frame} for frame in _frames(item, PIXELS, normal))


def _tile_parts(item: EncoderItem, _settings: Mapping[str, Any], normal: Normalization) -> Iterator[Inputs]:
    """Frames, each of which is read as an image of one tile."""
    return ({_IMAGE_PIXELS: frame[None]} for frame in _frames(item, PIXELS, normal))


def _video_parts(item: EncoderItem, _settings: Mapping[str, Any], normal: Normalization) -> Iterator[Inputs]:
    """Frames, each of which is read as a video."""
    return ({PIXELS: frame[None]} for frame in _frames(item, PIXELS, normal))


def _of_grid(settings: Mapping[str, Any], _config: Any) -> int:
    size = settings.get("size") or {}
    most = settings.get("max_pixels") or size.get("longest_edge") or size.get("max_pixels")
    if not isinstance(most, int):
        return MOST_VIDEO_EMBEDS
    return max(1, most // (int(settings.get("patch_size", 14)) * int(settings.get("merge_size", 2))) ** 2)


def _of_tile(_settings: Mapping[str, Any], config: Any) -> int:
    return int((_side(config) / float(config.scale_factor)) ** 2)


def _of_pooled_frame(_settings: Mapping[str, Any], config: Any) -> int:
    return (-(-_side(config) // 2)) ** 2 + 1


def _of_shuffled_frame(_settings: Mapping[str, Any], config: Any) -> int:
    return max(1, int((_side(config) * float(config.downsample_ratio)) ** 2))


def _side(config: Any) -> int:
    """Return the number of rows of patches of a frame."""
    sizes = (config.vision_config.image_size, config.vision_config.patch_size)
    image, patch = (int(size[0] if isinstance(size, (list, tuple)) else size) for size in sizes)
    return image // patch


_GRIDS = VideoKind(_grid_parts, "get_video_features", _of_grid)

VIDEO_KINDS: Mapping[str, VideoKind] = {
    "Glm46VForConditionalGeneration": _GRIDS,
    "Glm4vForConditionalGeneration": _GRIDS,
    "Glm4vMoeForConditionalGeneration": _GRIDS,
    "InternVLForConditionalGeneration": VideoKind(_image_parts, "get_image_features", _of_shuffled_frame),
    "LlavaOnevisionForConditionalGeneration": VideoKind(_video_parts, "get_video_features", _of_pooled_frame, 1),
    "Qwen2VLForConditionalGeneration": _GRIDS,
    "Qwen2_5_VLForConditionalGeneration": _GRIDS,
    "Qwen3VLForConditionalGeneration": _GRIDS,
    "Qwen3VLMoeForConditionalGeneration": _GRIDS,
    "Qwen3_5ForConditionalGeneration": _GRIDS,
    "Qwen3_5MoeForConditionalGeneration": _GRIDS,
    "SmolVLMForConditionalGeneration": VideoKind(_tile_parts, "get_image_features", _of_tile),
}
"""Architecture -> kind of its videos. Other models that read images read no videos."""


class VideoReader:
    """Reads the videos of a model.

    Args:
        kind: how the architecture reads them.
        settings: of the model's video processor.
        normal: the normalisation of frames.
        config: transformers' config of the model.

    Attributes:
        kind: as given.
        most_part_embeds: the largest number of embeddings of a part.
        largest: the largest number of embeddings of a video.
    """

    def __init__(self, kind: VideoKind, settings: Mapping[str, Any], normal: Normalization, config: Any) -> None:
        self.kind, self._settings, self._normal = kind, settings, normal
        self.largest = kind.largest(settings, config)
        self.most_part_embeds = min(self.largest, kind.part_embeds(settings, config))

    def parts(self, item: EncoderItem) -> Iterator[Inputs]:
        """Yield the arguments for each part. Raises InvalidRequest for tensors of other shapes."""
        if not item.tensors:
            raise InvalidRequest(f"Media item {item.identifier[:80]} has no tensors.")
        return self.kind.parts(item, self._settings, self._normal)

    def joined(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """Return the rows [N, hidden] of a video, of those of its parts."""
        ends = self.kind.num_end_rows
        if not ends:
            return torch.cat(parts)
        return torch.cat([*(part[:-ends] for part in parts[:-1]), parts[-1]])
