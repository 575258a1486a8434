"""Images from URLs and as base64, under vLLM's import path."""

import base64
import io
from typing import TYPE_CHECKING

from tetrad.multimodal.fetching import fetch_image as fetch_image
from tetrad.multimodal.image import convert_image_mode

if TYPE_CHECKING:
    from PIL.Image import Image


def encode_image_base64(image: "Image", *, image_mode: str = "RGB", format: str = "PNG") -> str:  # noqa: A002 - vLLM's name
    """Return an image as a file in base64.

    Args:
        image: the image.
        image_mode: mode of PIL that it is converted to.
        format: format of the file.
    """
    file = io.BytesIO()
    convert_image_mode(image, image_mode).save(file, format)
    return base64.b64encode(file.getvalue()).decode()


def encode_image_url(image: "Image", *, image_mode: str = "RGB", format: str = "PNG") -> str:  # noqa: A002 - vLLM's name
    """Return an image as a data: URL. Arguments: see `encode_image_base64`."""
    return f"data:image/{format.lower()};base64,{encode_image_base64(image, image_mode=image_mode, format=format)}"
