"""ImageAsset, under vLLM's import path: an example image of vLLM's documentation, fetched from its project. Needs Pillow."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tetrad.multimodal.utils import fetch_image

if TYPE_CHECKING:
    from PIL.Image import Image

BASE_URL = "https://vllm-public-assets.s3.us-west-2.amazonaws.com/vision_model_images"


@dataclass(frozen=True)
class ImageAsset:
    """An example image, as "stop_sign" or "cherry_blossom"."""

    name: str

    @property
    def pil_image(self) -> "Image":
        """The image, fetched anew each time."""
        return fetch_image(f"{BASE_URL}/{self.name}.jpg")
