"""Tower kinds: how the vision model of each architecture reads an item, and how large an item can be.

The calls are those of transformers' `get_image_features`. Knows processors' settings and configs; loads nothing.
"""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from tetrad.services.errors import InvalidRequest
from tetrad.worker_svc.core.plan import EncoderItem
from tetrad.worker_svc.media.pixels import Normalization
from tetrad.worker_svc.media.reader import Inputs

_PIXELS, _GRID, _SIZES, _MASK = "pixel_values", "image_grid_thw", "image_sizes", "pixel_attention_mask"
_COUNT = "batch_num_images"
_SHAPES = "spatial_shapes"
_GIVEN_DEFAULT = 2048
ROUNDED = "is_rounded_to_bfloat16"
"""Name of a setting of an image processor: see Normalization."""
_MOST_TILES, _MOST_CROPS = 128, 4


class TowerKind(NamedTuple):
    """How an architecture's vision model is called.

    Attributes:
        read: converts an item to arguments, with the processor's settings and normalisation.
        largest: returns the largest number of embeddings of an item, from the processor's settings and the model's config.
        uses_mrope: see Tower.
        is_whole: see Modality.
        prepare: changes transformers' module once, after its weights are in it.
        defaults: settings of an image processor that transformers has with torchvision alone; None: it has another.
    """

    read: Callable[[EncoderItem, Any, Normalization], Inputs]
    largest: Callable[[Any, Any], int]
    uses_mrope: bool = False
    is_whole: bool = False
    prepare: Callable[[torch.nn.Module], object] = lambda _: None
    defaults: Mapping[str, Any] | None = None


def tensor_of(item: EncoderItem, name: str, *shape: int) -> Any:
    """Return an item's array in a shape with -1 where any size is allowed; raise InvalidRequest if it does not fit."""
    array = item.tensors.get(name)
    if array is None:
        raise InvalidRequest(f"A media item has no tensor {name!r}; it has {', '.join(sorted(item.tensors)) or 'none'}.")
    fits = array.ndim == len(shape) and all(wanted in (-1, size) for size, wanted in zip(array.shape, shape, strict=True))
    if not fits or not array.size:
        raise InvalidRequest(f"Tensor {name!r} of a media item has shape {list(array.shape)}; expected {list(shape)}.")
    return array


def _numbers(item: EncoderItem, name: str, count: int) -> Any:
    """Return an item's `count` numbers as [1, count] int64."""
    array = item.tensors.get(name)
    if array is None or array.size != count or array.min() < 1:
        raise InvalidRequest(f"Tensor {name!r} of a media item must have {count} numbers of at least 1.")
    return torch.from_numpy(array.reshape(1, count).astype(np.int64))


def number_triple(item: EncoderItem, name: str) -> tuple[int, int, int]:
    """Return an item's three numbers; raise InvalidRequest if it has others."""
    first, second, third = _numbers(item, name, 3)[0].tolist()
    return first, second, third


def _image(item: EncoderItem) -> EncoderItem:
    """Return an item whose single image [3, H, W] may have a leading axis of one."""
    pixels = item.tensors.get(_PIXELS)
    if pixels is None or pixels.ndim != 3:
        return item
    return EncoderItem(item.identifier, item.modality, {**item.tensors, _PIXELS: pixels[None]}, item.num_embeds)


def _read_tiles(item: EncoderItem, _processor: Any, normal: Normalization) -> Inputs:
    """Tiles [tiles, 3, H, W] of one image, or the whole image."""
    return {_PIXELS: torch.from_numpy(normal.of(tensor_of(_image(item), _PIXELS, -1, normal.num_channels, -1, -1), 1))}


def _read_masked_tiles(item: EncoderItem, processor: Any, normal: Normalization) -> Inputs:
    """Tiles as above, and a mask [tiles, H, W] of the pixels that are no padding."""
    pixels = _read_tiles(item, processor, normal)[_PIXELS]
    inputs = {_PIXELS: pixels[None]}
    if _MASK in item.tensors:
        mask = torch.from_numpy(tensor_of(item, _MASK, len(pixels), *pixels.shape[2:]) != 0)
        pixels.mul_(mask[:, None])  # transformers pads normalised images with zeros
        inputs[_MASK] = mask[None]
    return inputs


def _read_sized(item: EncoderItem, processor: Any, normal: Normalization) -> Inputs:
    """One image [3, H, W] with its size [height, width]."""
    return _read_tiles(item, processor, normal) | {_SIZES: _numbers(item, _SIZES, 2)}


def _read_whole_image(item: EncoderItem, processor: Any, normal: Normalization) -> Inputs:
    """One image [3, H, W], with its size if the vision model takes any size (Pixtral)."""
    return (_read_sized if _SIZES in item.tensors else _read_tiles)(item, processor, normal)


def _read_anyres(item: EncoderItem, processor: Any, normal: Normalization) -> Inputs:
    """Tiles of one image, the whole image first, with the size of the image before preprocessing."""
    inputs = _read_sized(item, processor, normal)
    return inputs | {_PIXELS: inputs[_PIXELS][None]}


def _read_anyres_or_whole(item: EncoderItem, processor: Any, normal: Normalization) -> Inputs:
    """Tiles as above, or one of an image whose prompt has several, with the number of these images."""
    return _read_anyres(item, processor, normal) | {_COUNT: _numbers(item, _COUNT, 1)[0]}


def _read_patches(item: EncoderItem, processor: Any, normal: Normalization) -> Inputs:
    """Rows of patches [patches, channels * patch * patch], each standing for `temporal_patch_size` equal frames, and a grid."""
    size, frames = int(processor.patch_size), int(processor.temporal_patch_size)
    grid = _numbers(item, _GRID, 3)
    rows, area = int(grid.prod()), size * size
    array = tensor_of(item, _PIXELS, rows, -1)
    whole = normal.num_channels * area
    if array.shape[1] not in (whole, whole * frames):
        raise InvalidRequest(f"Rows of {_PIXELS!r} have {array.shape[1]} values; a patch has {whole} in {frames} frames.")
    patches = normal.of(array.reshape(rows, normal.num_channels, -1, area), 1)
    if array.shape[1] == whole:
        patches = np.repeat(patches, frames, axis=2)
    return {_PIXELS: torch.from_numpy(patches.reshape(rows, -1)), _GRID: grid}


def _read_naflex(item: EncoderItem, _processor: Any, normal: Normalization) -> Inputs:
    """Rows of patches [patches, patch * patch * 3] of all tiles of one image, and rows and columns of each tile [tiles, 2]."""
    shapes = torch.from_numpy(tensor_of(item, _SHAPES, -1, 2).astype(np.int64))
    counts = shapes.prod(dim=1)
    if len(counts) > _MOST_TILES or int(shapes.min()) < 1 or int(shapes.max()) > _GIVEN_DEFAULT:
        raise InvalidRequest(f"Tensor {_SHAPES!r} of a media item has values that are no rows and columns of a tile.")
    array = tensor_of(item, _PIXELS, int(counts.sum()), -1)
    if array.shape[1] % normal.num_channels:
        raise InvalidRequest(f"Rows of {_PIXELS!r} have {array.shape[1]} values, which are no {normal.num_channels} channels.")
    values = normal.of(array.reshape(len(array), -1, normal.num_channels), 2).reshape(len(array), -1)
    tiles = torch.split(torch.from_numpy(values), counts.tolist())
    mask = torch.arange(int(counts.max()))[None] < counts[:, None]
    pixels = torch.nn.utils.rnn.pad_sequence(list(tiles), batch_first=True)
    return {_PIXELS: pixels, _SHAPES: shapes, _MASK: mask.long()}


def _edge(size: Any, *names: str) -> int:
    """Return a value of a processor's size, which may have several names."""
    values = size if isinstance(size, Mapping) else vars(size) if hasattr(size, "__dict__") else {}
    return next((int(values[name]) for name in names if values.get(name)), _GIVEN_DEFAULT)


def _of_patches(processor: Any, _config: Any) -> int:
    most = int(getattr(processor, "max_pixels", None) or _edge(processor.size, "longest_edge"))
    return max(1, most // (int(processor.patch_size) * int(processor.merge_size)) ** 2)


def _of_videos_patches(processor: Any, config: Any) -> int:
    # Its limit counts the pixels of temporal_patch_size frames.
    return max(1, _of_patches(processor, config) // int(processor.temporal_patch_size))


def _of_split_tiles(processor: Any, config: Any) -> int:
    vision = config.vision_config
    per_tile = (int(vision.image_size) // int(vision.patch_size)) ** 2 // int(config.scale_factor) ** 2
    longest, tile = _edge(processor.size, "longest_edge"), _edge(processor.max_image_size, "longest_edge")
    return ((-(-longest // tile)) ** 2 + 1) * per_tile


def _side(value: Any) -> int:
    return int(value[0] if isinstance(value, (list, tuple)) else value)


def _of_whole_image(processor: Any, config: Any) -> int:
    vision = config.vision_config
    if vision.model_type == "pixtral":
        return _of_any_size(processor, config)
    is_default = getattr(config, "vision_feature_select_strategy", "default") == "default"
    return (_side(vision.image_size) // _side(vision.patch_size)) ** 2 + (0 if is_default else 1)


def _of_cropped_tiles(processor: Any, config: Any) -> int:
    vision = config.vision_config
    per_tile = int((_side(vision.image_size) // _side(vision.patch_size) * float(config.downsample_ratio)) ** 2)
    return max(1, per_tile) * (int(processor.max_patches) + 1)


def _of_any_size(processor: Any, config: Any) -> int:
    merged = int(config.vision_config.patch_size) * int(getattr(config, "spatial_merge_size", 1))
    side = -(-_edge(processor.size, "longest_edge") // merged)
    return side * side


def _tile_side(config: Any) -> int:
    return _side(config.vision_config.image_size) // _side(config.vision_config.patch_size)


def _of_pinpoints(_processor: Any, config: Any) -> int:
    size, side = _side(config.vision_config.image_size), _tile_side(config)
    tiles = [(int(height) // size, int(width) // size) for height, width in config.image_grid_pinpoints]
    return side * side + max(rows * side * (columns * side + 1) for rows, columns in tiles)


def _of_limited_pinpoints(_processor: Any, config: Any) -> int:
    """A bound: an image of more tiles than the config allows is made smaller once it exceeds them by 1.1 a side."""
    size, side = _side(config.vision_config.image_size), _tile_side(config)
    tiles = [(int(height) // size, int(width) // size) for height, width in config.image_grid_pinpoints]
    most = int(1.1**2 * int(config.vision_aspect_ratio.removeprefix("anyres_max_")) * side * side)
    return side * side + max(min(rows * side * columns * side, most) + rows * side for rows, columns in tiles)


def _of_tiles_and_whole(processor: Any, _config: Any) -> int:
    tile = -(-(int(processor.tile_size) // int(processor.encoder_patch_size)) // int(processor.downsample_factor))
    return (int(processor.max_tiles) * tile**2 if processor.do_image_splitting else 0) + int(processor.max_image_tokens)


def _of_shuffled_tiles(processor: Any, config: Any) -> int:
    vision, most = config.vision_config, int(processor.max_patches)
    per_tile = int((_tile_side(config) * float(vision.pixel_shuffle_ratio)) ** 2)
    return per_tile * (most + 1 if most > 1 else 1)


def _of_pooled_image(processor: Any, config: Any) -> int:
    """The whole image, and the crops that a request may ask for: as many as transformers' processor makes."""
    crops = getattr(processor, "pan_and_scan_max_num_crops", None)
    return int(config.mm_tokens_per_image) * (1 + int(_MOST_CROPS if crops is None else crops))


def _keep_single_row(module: torch.nn.Module) -> None:
    """Let Mistral 3 encode an image that becomes one embedding.

    Its `get_image_features` squeezes the first axis of the projector's output [N, hidden], which it finds only if N is 1.
    """
    projector = module.get_submodule("multi_modal_projector")
    projector.register_forward_hook(lambda _module, _inputs, output: output[None])


def _project_features(module: Any) -> None:
    """Give Llama 4's module the method of other models: its own leaves the projection to `forward`."""
    encode, projector = module.get_image_features, module.get_submodule("multi_modal_projector")

    def get_image_features(**inputs: torch.Tensor) -> Any:
        return SimpleNamespace(pooler_output=projector(encode(**inputs).last_hidden_state))

    module.get_image_features = get_image_features


_LLAMA4: Mapping[str, Any] = {
    "max_patches": 16,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    ROUNDED: True,
}
_LFM2: Mapping[str, Any] = {
    "downsample_factor": 2,
    "do_image_splitting": True,
    "max_tiles": 10,
    "max_image_tokens": 256,
    "encoder_patch_size": 16,
    "tile_size": 512,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
_PATCHES = TowerKind(_read_patches, _of_patches, uses_mrope=True)
_VIDEO_PATCHES = TowerKind(_read_patches, _of_videos_patches, uses_mrope=True)
_SPLIT_TILES = TowerKind(_read_masked_tiles, _of_split_tiles)
_ANYRES = TowerKind(_read_anyres, _of_pinpoints)

TOWER_KINDS: Mapping[str, TowerKind] = {
    "Gemma3ForConditionalGeneration": TowerKind(_read_tiles, _of_pooled_image, is_whole=True),
    "Glm46VForConditionalGeneration": _VIDEO_PATCHES,
    "Glm4vForConditionalGeneration": _VIDEO_PATCHES,
    "Glm4vMoeForConditionalGeneration": _VIDEO_PATCHES,
    "Idefics3ForConditionalGeneration": _SPLIT_TILES,
    "InternVLForConditionalGeneration": TowerKind(_read_tiles, _of_cropped_tiles),
    "Lfm2VlForConditionalGeneration": TowerKind(_read_naflex, _of_tiles_and_whole, defaults=_LFM2),
    "Llama4ForConditionalGeneration": TowerKind(_read_tiles, _of_shuffled_tiles, prepare=_project_features, defaults=_LLAMA4),
    "LlavaForConditionalGeneration": TowerKind(_read_whole_image, _of_whole_image),
    "LlavaNextForConditionalGeneration": _ANYRES,
    "LlavaOnevisionForConditionalGeneration": TowerKind(_read_anyres_or_whole, _of_limited_pinpoints),
    "Mistral3ForConditionalGeneration": TowerKind(_read_sized, _of_any_size, prepare=_keep_single_row),
    "Qwen2VLForConditionalGeneration": _PATCHES,
    "Qwen2_5_VLForConditionalGeneration": _PATCHES,
    "Qwen3VLForConditionalGeneration": _PATCHES,
    "Qwen3VLMoeForConditionalGeneration": _PATCHES,
    "Qwen3_5ForConditionalGeneration": _PATCHES,
    "Qwen3_5MoeForConditionalGeneration": _PATCHES,
    "SmolVLMForConditionalGeneration": _SPLIT_TILES,
}
"""Architecture -> kind of its tower. Models of other architectures take only text."""
