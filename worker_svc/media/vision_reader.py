"""Vision reader: reads images and videos for a tower, and knows how large they become in the vision model.

Knows transformers' vision configs and the settings of image processors; runs no module itself.
"""

from collections.abc import Mapping
from typing import Any

import torch

from tetrad.worker_svc.core.media import IMAGE, VIDEO, Modality
from tetrad.worker_svc.core.plan import EncoderItem
from tetrad.worker_svc.media.pixels import Normalization
from tetrad.worker_svc.media.reader import Call, Encoded
from tetrad.worker_svc.media.tower_kinds import ROUNDED, TowerKind
from tetrad.worker_svc.media.video_kinds import VideoReader

_PATCH_VALUES = 1024
_NORMAL = ("do_normalize", "image_mean", "image_std", "do_rescale", "rescale_factor")


class VisionReader:
    """See ItemReader.

    Args:
        kind: how the architecture reads items.
        config: transformers' config of the model.
        processor: the settings of the model's image processor.
        modalities: the modalities, each with the largest number of embeddings of an item.
        videos: reads videos; None: the model reads images only.
    """

    def __init__(
        self, kind: TowerKind, config: Any, processor: Any, modalities: tuple[Modality, ...], videos: VideoReader | None = None
    ) -> None:
        self.uses_mrope = kind.uses_mrope
        self.modalities = modalities
        self._kind, self._config, self._processor, self._videos = kind, config, processor, videos
        self._normal = normalization_of(processor)
        self._vision: Any = config.vision_config
        self.num_deep_layers = len(getattr(self._vision, "deepstack_visual_indexes", None) or ())

    def encode(self, item: EncoderItem, call: Call) -> Encoded:
        """See ItemReader."""
        if item.modality == VIDEO and self._videos is not None:
            method, join = self._videos.kind.method, self._videos.joined
            parts = [call(method, inputs) for inputs in self._videos.parts(item)]
            deep = None if parts[0][1] is None else torch.cat([each for _, each in parts if each is not None], dim=1)
            return join([rows for rows, _ in parts]), deep
        return call("get_image_features", self._kind.read(item, self._processor, self._normal))

    def activation_values(self, num_embeds: int) -> int:
        """See ItemReader: for all patches, the activations of one layer as measured with several vision models, and the values
        of a patch. A video is encoded in parts.
        """
        if self._videos is not None:
            images = [each.max_embeds_per_item for each in self.modalities if each.modality == IMAGE]
            num_embeds = min(num_embeds, max(self._videos.most_part_embeds, *images))
        size = _first(self._vision, "embed_dim", "hidden_size")
        inner = _first(self._vision, "intermediate_size") or 4 * size
        # Classes that choose a layer's output keep the outputs of all layers.
        kept = _first(self._vision, "num_hidden_layers") if hasattr(self._config, "vision_feature_layer") else 0
        return num_embeds * self._patches_per_embed() * ((12 + kept) * size + 2 * inner + _PATCH_VALUES)

    def _patches_per_embed(self) -> int:
        config = self._config
        if tokens := _first(config, "mm_tokens_per_image"):
            return (_first(self._vision, "image_size") // _first(self._vision, "patch_size")) ** 2 // tokens
        if tiles := getattr(config, "image_grid_pinpoints", None):
            # LLaVA-OneVision encodes all tiles and makes the result smaller; the largest image becomes about
            # `most` tiles of embeddings.
            side = _first(self._vision, "image_size")
            most = int(getattr(config, "vision_aspect_ratio", "").removeprefix("anyres_max_") or 0)
            largest = max(height * width for height, width in tiles) // side**2
            return -(-(1 + largest) // (1 + most)) if most else 1
        side = _first(self._vision, "spatial_merge_size") or _first(
            config, "spatial_merge_size", "scale_factor", "downsample_factor"
        )
        ratio = float(getattr(config, "downsample_ratio", None) or getattr(self._vision, "pixel_shuffle_ratio", None) or 1)
        return (side or round(1 / ratio)) ** 2


def normalization_of(processor: Any, settings: Mapping[str, Any] | None = None) -> Normalization:
    """Return the normalisation of an image processor; `settings` replace some of its values."""
    its = {name: getattr(processor, name) for name in _NORMAL} | {
        name: value for name, value in (settings or {}).items() if name in _NORMAL and value is not None
    }
    return Normalization(
        its["image_mean"] if its["do_normalize"] else None,
        its["image_std"] if its["do_normalize"] else None,
        float(its["rescale_factor"]) if its["do_rescale"] else None,
        is_rounded=getattr(processor, ROUNDED, False),
    )


def _first(config: Any, *names: str) -> int:
    found: Mapping[str, Any] = {name: getattr(config, name, None) for name in names}
    return next((value for value in found.values() if isinstance(value, int)), 0)
