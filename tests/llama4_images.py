"""Llama 4's image processor of transformers without torchvision, which it needs: its three functions of that are made here."""

import sys
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from transformers.feature_extraction_utils import BatchFeature
from transformers.image_utils import SizeDict


def _functional() -> ModuleType:
    """Return torchvision.transforms.v2.functional with what the processor calls; images are resized by Pillow."""
    module = ModuleType("torchvision.transforms.v2.functional")
    module.pad = _padded  # type: ignore[attr-defined]
    return module


def _padded(images: torch.Tensor, padding: Sequence[int], fill: Sequence[int]) -> torch.Tensor:
    assert set(fill) == {0}
    left, top, right, bottom = padding
    return torch.nn.functional.pad(images, (left, right, top, bottom))


@cache
def llama4_image_processor() -> type[Any]:
    """Return a class like transformers' on Pillow: of images, it makes the same tensors."""
    names = ("torchvision", "torchvision.transforms", "torchvision.transforms.v2")
    functional = _functional()
    parts = {name: ModuleType(name) for name in names} | {functional.__name__: functional}
    parts["torchvision.transforms.v2"].functional = functional  # type: ignore[attr-defined]
    # Other modules that are imported meanwhile stay: torch cannot be imported twice. Its compiler would take seconds.
    sys.modules.update(parts)
    try:
        with patch.object(torch.compiler, "disable", lambda function: function):
            from transformers.models.llama4.image_processing_llama4 import Llama4ImageProcessor as Whole
    finally:
        for name in parts:
            del sys.modules[name]

    class Processor:
        """See above; attributes are those of transformers' processors."""

        model_input_names = ("pixel_values",)

        def __init__(self, **settings: Any) -> None:
            defaults = {"rescale_factor": 1 / 255, "image_mean": Whole.image_mean, "image_std": Whole.image_std}
            self._settings = {"size": Whole.size, "max_patches": 16, "resize_to_max_canvas": False, **defaults, **settings}
            self.rescale_factor = self._settings["rescale_factor"]
            self.image_mean, self.image_std = self._settings["image_mean"], self._settings["image_std"]
            self._whole = Whole.__new__(Whole)
            self._whole.resize = _resized
            self._whole.normalize = _normalized

        def fetch_images(self, images: Any) -> Any:
            return images

        def __call__(self, images: Any, **kwargs: Any) -> BatchFeature:
            flat = [image for each in images for image in (each if isinstance(each, list) else [each])]
            values = {"do_resize": True, "do_rescale": True, "do_normalize": True} | self._settings | kwargs
            made = self._whole._preprocess(
                [torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in flat],
                resample=2,
                disable_grouping=True,
                **{name: value for name, value in values.items() if name not in ("size", "resample", "disable_grouping")},
                size=SizeDict(**values["size"]),
            )
            pixels = made["pixel_values"]
            made["pixel_values"] = pixels.float() if pixels.is_floating_point() else pixels  # models of tests are in float32
            return made

        def normalised(self, pixels: np.ndarray) -> np.ndarray:
            """Return pixels as the processor normalises them, in float32."""
            values = (True, self.rescale_factor, True, self.image_mean, self.image_std)
            return self._whole.rescale_and_normalize(torch.from_numpy(pixels.copy()), *values).float().numpy()

    return Processor


def _resized(images: torch.Tensor, size: SizeDict, *, resample: int) -> torch.Tensor:
    shown = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images]
    made = [np.array(image.resize((size.width, size.height), Image.Resampling(resample))) for image in shown]
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2)


def _normalized(images: torch.Tensor, mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """Return what torchvision's `normalize` computes, in the type of the images."""
    means, deviations = (torch.as_tensor(value, dtype=images.dtype).view(-1, 1, 1) for value in (mean, std))
    return images.sub(means).div_(deviations)
