"""vLLM's helpers for images."""

import base64
import io

import numpy as np
from PIL import Image

from tetrad.multimodal.image import convert_image_mode
from tetrad.multimodal.utils import encode_image_base64, encode_image_url

VALUES = np.random.default_rng(0).integers(0, 256, (5, 7, 4), dtype=np.uint8)


def test_what_is_transparent_becomes_white():
    values = VALUES.copy()
    values[:, :3, 3], values[:, 3:, 3] = 0, 255

    made = np.asarray(convert_image_mode(Image.fromarray(values), "RGB"))

    assert np.all(made[:, :3] == 255)
    assert np.array_equal(made[:, 3:], values[:, 3:, :3])


def test_other_modes_are_converted_as_pil_does():
    image = Image.fromarray(VALUES[:, :, :3])

    assert convert_image_mode(image, "RGB") is image
    assert convert_image_mode(image, "L") == image.convert("L")


def test_an_image_is_encoded_as_a_file_in_base64():
    image = Image.fromarray(VALUES[:, :, :3])

    assert Image.open(io.BytesIO(base64.b64decode(encode_image_base64(image)))).convert("RGB") == image
    assert encode_image_url(image, format="JPEG").startswith("data:image/jpeg;base64,/9j/")
