"""transformers' own processor of a model directory, on Pillow: what the tokenizer's answer must equal."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import transformers
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer
from transformers.processing_utils import ProcessorMixin

_OF_TRANSFORMERS = {"image_processor", "image_processor_type", "processor_class", "video_processor"}


def reference_processor(directory: Path) -> Any:
    """Return the processor that AutoProcessor would load, without the parts for videos, which need torchvision."""
    values = json.loads((directory / "processor_config.json").read_text())
    kind = getattr(transformers, values["processor_class"])
    parts = {
        "image_processor": AutoImageProcessor.from_pretrained(directory, backend="pil"),
        "tokenizer": AutoTokenizer.from_pretrained(directory),
    }
    if "video_processor" in kind.__init__.__code__.co_varnames:
        parts["video_processor"] = None
    settings = {key: value for key, value in values.items() if key not in _OF_TRANSFORMERS}
    words = mock.patch("transformers.models.smolvlm.processing_smolvlm.num2words", object())
    with words, mock.patch.object(ProcessorMixin, "check_argument_for_proper_class"):
        return kind(**parts, **settings)


def reference_inputs(directory: Path, prompt: str, images: Sequence[Image.Image], **kwargs: Any) -> dict[str, Any]:
    """Return transformers' inputs of a prompt with images, as lists and arrays of numpy."""
    return dict(reference_processor(directory)(images=list(images), text=prompt, return_tensors="np", **kwargs))
