"""Tower of transformers: runs the vision model and projector of a model with transformers' own modules, on any device.

Knows nothing of files: tower_loading.py makes the module.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from tetrad.services.errors import InternalError, TetradError, one_line
from tetrad.services.log import get_logger
from tetrad.worker_svc.core.media import IMAGE, VIDEO, EncodedItem, Modality
from tetrad.worker_svc.core.memory_shortage import memory_for
from tetrad.worker_svc.core.plan import EncoderItem
from tetrad.worker_svc.media.pixels import Normalization
from tetrad.worker_svc.media.tower_kinds import Inputs, TowerKind
from tetrad.worker_svc.media.video_kinds import VideoReader

_PATCH_VALUES = 1024
_NORMAL = ("do_normalize", "image_mean", "image_std", "do_rescale", "rescale_factor")
SMALLER_IMAGE = "Send a smaller image, or lower --kv-cache-memory-gib or --gpu-memory-utilization."

log = get_logger()


class TransformersTower:
    """See core.media.Tower.

    Args:
        module: transformers' model without its text layers, in evaluation mode on its device.
        kind: how the architecture reads items.
        processor: the settings of the model's image processor.
        modalities: the modalities, each with the largest number of embeddings of an item.
        has_own_thread: see Tower.
        videos: reads videos; None: the model reads images only.
    """

    is_attended = False

    def __init__(
        self,
        module: Any,
        kind: TowerKind,
        processor: Any,
        modalities: tuple[Modality, ...],
        *,
        has_own_thread: bool,
        videos: VideoReader | None = None,
    ) -> None:
        self._module, self._read, self._processor = module, kind.read, processor
        self.uses_mrope = kind.uses_mrope
        self._normal, self._videos = normalization_of(processor), videos
        self._hidden_size = int(module.config.get_text_config().hidden_size)
        self._vision: Any = module.config.vision_config
        self.modalities, self.has_own_thread = modalities, has_own_thread
        self.num_deep_layers = len(getattr(self._vision, "deepstack_visual_indexes", None) or ())
        weights = list(module.parameters())
        self.num_parameters = sum(each.numel() for each in weights)
        self.size_bytes = sum(each.nbytes for each in weights)
        self._value_bytes: int = weights[0].element_size()
        self.embed_bytes = self._hidden_size * (1 + self.num_deep_layers) * self._value_bytes

    @torch.inference_mode()
    def encode(self, item: EncoderItem) -> EncodedItem:
        """See Tower."""
        try:
            with memory_for(f"Encoding a media item of {item.num_embeds} embeddings", None, SMALLER_IMAGE):
                encoded = self._encode(item)
        except TetradError:
            raise
        except Exception as error:
            if self._is_lost():
                raise
            log.warning("media.failed", identifier=item.identifier, exc_info=error)
            raise InternalError(f"The media item cannot be encoded: {one_line(error)}.") from error
        self._check(item, encoded)
        return encoded

    def activation_bytes(self, num_embeds: int) -> int:
        """See Tower: for all patches, the activations of one layer as measured with several vision models, and the values of
        a patch. A video is encoded in parts.
        """
        if self._videos is not None:
            images = [each.max_embeds_per_item for each in self.modalities if each.modality == IMAGE]
            num_embeds = min(num_embeds, max(self._videos.most_part_embeds, *images))
        size = _first(self._vision, "embed_dim", "hidden_size")
        inner = _first(self._vision, "intermediate_size") or 4 * size
        # Classes that choose a layer's output keep the outputs of all layers.
        kept = _first(self._vision, "num_hidden_layers") if hasattr(self._module.config, "vision_feature_layer") else 0
        values = (12 + kept) * size + 2 * inner + _PATCH_VALUES
        return num_embeds * self._patches_per_embed() * values * self._value_bytes

    def _patches_per_embed(self) -> int:
        config = self._module.config
        if tokens := _first(config, "mm_tokens_per_image"):
            return (_first(self._vision, "image_size") // _first(self._vision, "patch_size")) ** 2 // tokens
        if tiles := getattr(config, "image_grid_pinpoints", None):
            # LLaVA-OneVision encodes all tiles and makes the result smaller; the largest image becomes about
            # `most` tiles of embeddings.
            side = _first(self._vision, "image_size")
            most = int(getattr(config, "vision_aspect_ratio", "").removeprefix("anyres_max_") or 0)
            largest = max(height * width for height, width in tiles) // side**2
            return -(-(1 + largest) // (1 + most)) if most else 1
        side = _first(self._vision, "spatial_merge_size") or _first(config, "spatial_merge_size", "scale_factor")
        return (side or round(1 / getattr(config, "downsample_ratio", 1))) ** 2

    def _encode(self, item: EncoderItem) -> EncodedItem:
        if item.modality == VIDEO and self._videos is not None:
            method, join = self._videos.kind.method, self._videos.joined
            parts = [self._features(method, inputs) for inputs in self._videos.parts(item)]
            deep = None if parts[0][1] is None else torch.cat([each for _, each in parts if each is not None], dim=1)
            return self._kept(join([rows for rows, _ in parts]), deep)
        return self._kept(*self._features("get_image_features", self._read(item, self._processor, self._normal)))

    def _features(self, method: str, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the rows [N, hidden] of one call, and deep values [L, N, hidden]."""
        weight = next(self._module.parameters())
        moved = {
            name: each.to(weight.device, weight.dtype if each.is_floating_point() else None) for name, each in inputs.items()
        }
        output = getattr(self._module, method)(**moved)
        deep = getattr(output, "deepstack_features", None) if self.num_deep_layers else None
        return _rows(output.pooler_output), None if deep is None else torch.stack([_rows(each) for each in deep])

    def _kept(self, rows: torch.Tensor, deep: torch.Tensor | None) -> EncodedItem:
        """Return the output [N, hidden], and deep values [L, N, hidden], in the memory that the encoder cache is in."""
        return EncodedItem(_host(rows), None if deep is None else _host(deep))

    def _is_lost(self) -> bool:
        """Return whether the device can no longer be used after an error; on a host, an error concerns the item alone."""
        return False

    def _are_finite(self, values: Any) -> bool:
        return bool(np.isfinite(values).all())

    def _check(self, item: EncoderItem, encoded: EncodedItem) -> None:
        if encoded.rows.shape != (item.num_embeds, self._hidden_size):
            raise InternalError(
                f"The media item became embeddings of shape {list(encoded.rows.shape)}; its prompt has {item.num_embeds} "
                f"placeholders for embeddings of {self._hidden_size} values."
            )
        if not all(self._are_finite(each) for each in encoded if each is not None):
            raise InternalError("The media item became embeddings that are not finite.")


def normalization_of(processor: Any, settings: Mapping[str, Any] | None = None) -> Normalization:
    """Return the normalisation of an image processor; `settings` replace some of its values."""
    its = {name: getattr(processor, name) for name in _NORMAL} | {
        name: value for name, value in (settings or {}).items() if name in _NORMAL and value is not None
    }
    return Normalization(
        its["image_mean"] if its["do_normalize"] else None,
        its["image_std"] if its["do_normalize"] else None,
        float(its["rescale_factor"]) if its["do_rescale"] else None,
    )


def _rows(features: Any) -> torch.Tensor:
    """Return features of one item, [N, hidden]: of each tile, or a list with one entry for each image."""
    parts = list(features) if isinstance(features, (list, tuple)) else [features]
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])


def _host(rows: torch.Tensor) -> Any:
    return rows.float().cpu().contiguous().numpy()


def _first(config: Any, *names: str) -> int:
    found: Mapping[str, Any] = {name: getattr(config, name, None) for name in names}
    return next((value for value in found.values() if isinstance(value, int)), 0)
