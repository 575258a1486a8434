"""PilProcessor: runs transformers' image processor of a model, on Pillow and numpy, and returns bytes instead of floats.

Runs in the image process, without torch. Rescaling and normalisation are left to the worker, which computes them from the
bytes with the same values: pixels travel in a quarter of the size.
"""

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tetrad.tokenizer_svc.media.images.bounded_resize import bounded
from tetrad.tokenizer_svc.media.images.decoding import decode_image
from tetrad.tokenizer_svc.media.images.families.model import BESIDE_OTHERS
from tetrad.tokenizer_svc.media.images.lfm2_processor import Lfm2Processor
from tetrad.tokenizer_svc.media.images.llama4_processor import Llama4Processor
from tetrad.tokenizer_svc.media.items import MediaError

CLASSES: Mapping[str, str] = {
    "CLIPImageProcessor": "clip",
    "Gemma3ImageProcessor": "gemma3",
    "Glm46VImageProcessor": "glm46v",
    "Glm4vImageProcessor": "glm4v",
    "GotOcr2ImageProcessor": "got_ocr2",
    "Idefics3ImageProcessor": "idefics3",
    "LlavaImageProcessor": "llava",
    "LlavaNextImageProcessor": "llava_next",
    "LlavaOnevisionImageProcessor": "llava_onevision",
    "PixtralImageProcessor": "pixtral",
    "Qwen2VLImageProcessor": "qwen2_vl",
    "SiglipImageProcessor": "siglip",
    "SmolVLMImageProcessor": "smolvlm",
}
"""Image processors in preprocessor_config.json, without "Fast", and transformers' module of each."""
_OWN: Mapping[str, Any] = {"Lfm2VlImageProcessor": Lfm2Processor, "Llama4ImageProcessor": Llama4Processor}
"""Image processors that transformers has with torchvision alone."""
_UNSCALED = {"do_rescale": False, "do_normalize": False, "do_convert_rgb": False}
_ROWS = "return_row_col_info"
_PIXELS, _MASK = "pixel_values", "pixel_attention_mask"
_MAX_REASON_CHARS = 300

Tensors = dict[str, NDArray[Any]]


class PilProcessor:
    """A model's image processor.

    Args:
        settings: values of preprocessor_config.json.
        max_pixels: maximum number of pixels of a file.
        class_name: name in `CLASSES` or `_OWN`.
        stacked: the processor's outputs have a first dimension of images; otherwise only those besides the pixels have one.
        repeats_frames: rows of pixels hold `temporal_patch_size` copies of the frame, of which one is returned.
    """

    def __init__(
        self, settings: Mapping[str, Any], *, max_pixels: int, class_name: str, stacked: bool, repeats_frames: bool
    ) -> None:
        self._max_pixels = max_pixels
        self._processor: Any = _OWN[class_name](**settings) if class_name in _OWN else _of_transformers(class_name, settings)
        self._stacked, self._repeats_frames = stacked, repeats_frames
        self._names = self._processor.valid_kwargs.__annotations__.keys()

    def settings(self) -> dict[str, Any]:
        """Return the processor's settings with its defaults, as JSON values."""
        return {key: value for key, value in self._processor.to_dict().items() if key in self._names}

    def process(self, data: bytes, kwargs: Mapping[str, Any]) -> Tensors:
        """Return the tensors of one image by name: pixels in uint8, other values in int64.

        Args:
            data: the image file.
            kwargs: settings of this image that differ from the model's.

        Raises:
            MediaError: the file is no image, or the processor refuses the image or the settings.
        """
        image = decode_image(data, max_pixels=self._max_pixels)
        if kwargs.get(BESIDE_OTHERS):
            kwargs = {name: value for name, value in kwargs.items() if name != BESIDE_OTHERS}
            images: list[Any] = [[image, Image.new("RGB", (1, 1))]]  # as a prompt's two images; the other costs nothing
        else:
            images = [image]
        if unknown := kwargs.keys() - self._names:
            raise MediaError(f"the image processor has no setting {min(unknown)!r}")
        more = {_ROWS: True} if _ROWS in self._names else {}
        try:
            found = self._processor.preprocess(images, **{**kwargs, **_UNSCALED, **more})
        except (MediaError, MemoryError):
            raise
        except Exception as error:  # transformers raises any error of Python for settings that do not fit
            raise MediaError(_reason(error, kwargs)) from error
        tensors = {name: self._one(name, value) for name, value in found.items()}
        if _MASK in tensors and tensors[_MASK].all():
            del tensors[_MASK]  # nothing of a single image is padding
        return tensors

    def _one(self, name: str, value: Any) -> NDArray[Any]:
        if name != _PIXELS:
            return np.ascontiguousarray(value[0], dtype=np.int64)
        pixels = np.asarray(value[0] if self._stacked else value)
        if self._repeats_frames:
            settings = self._processor
            side, frames = settings.patch_size, settings.temporal_patch_size
            pixels = pixels.reshape(len(pixels), -1, frames, side * side)[:, :, 0].reshape(len(pixels), -1)
        as_bytes = pixels.astype(np.uint8)
        if as_bytes.dtype != pixels.dtype and not np.array_equal(as_bytes, pixels):
            raise MediaError("the image processor returns pixels that are no bytes")
        return np.ascontiguousarray(as_bytes)


def _of_transformers(class_name: str, settings: Mapping[str, Any]) -> Any:
    module = CLASSES[class_name]
    code = importlib.import_module(f"transformers.models.{module}.image_processing_pil_{module}")
    return bounded(getattr(code, f"{class_name}Pil"))(**settings)


def _reason(error: Exception, kwargs: Mapping[str, Any]) -> str:
    """Return an error of transformers on one line, with the request's settings, which it may not name."""
    text = " ".join(str(error).split())[:_MAX_REASON_CHARS] or type(error).__name__
    return f"with mm_processor_kwargs {dict(kwargs)!r:.100}, the image processor fails: {text}" if kwargs else text
