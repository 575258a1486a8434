"""PIL images and arrays are written as files without a loss: a decoder returns the same pixels."""

import io

import numpy as np
import pytest
from PIL import Image

from tetrad.library.image_bytes import image_bytes
from tetrad.services.errors import InvalidRequest

VALUES = np.random.default_rng(0).integers(0, 256, (5, 7, 4), dtype=np.uint8)


def decoded(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_an_array_keeps_its_values(channels):
    array = VALUES[:, :, :channels]

    read = np.asarray(decoded(image_bytes(array, "image")))

    assert np.array_equal(read.reshape(array.shape), array)


def test_an_array_without_channels_is_grey():
    assert np.array_equal(np.asarray(decoded(image_bytes(VALUES[:, :, 0], "image"))), VALUES[:, :, 0])


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "F", "I", "I;16"])
def test_a_pil_image_is_read_as_pil_converts_it(mode):
    image = Image.new(mode, (7, 5))
    image.paste(Image.fromarray(VALUES[:, :, :3]).convert(mode if mode not in ("PA", "I;16") else "L"))

    assert decoded(image_bytes(image, "image")).convert("RGB").tobytes() == image.convert("RGB").tobytes()


def test_a_photograph_is_not_turned_again():
    """PIL has an image as it is stored; a program that wants it upright has turned it."""
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    file = io.BytesIO()
    Image.fromarray(VALUES[:, :, :3]).save(file, "JPEG", exif=exif)
    image = Image.open(file)

    assert dict(decoded(image_bytes(image, "image")).getexif()) == {}


def test_the_content_of_a_file_is_passed_on():
    assert image_bytes(b"any", "image") == b"any"
    assert image_bytes(memoryview(b"any"), "image") == b"any"


@pytest.mark.parametrize(
    ("image", "text"),
    [
        ("photo.png", "image must be a PIL image, a numpy array or the bytes of an image file, got str"),
        (VALUES.astype(np.float32), "image has the dtype float32: the values of an image are uint8"),
        (np.zeros((3, 8, 8), np.uint8), r"image has the shape \[3, 8, 8\]: an image is \[height, width, channels\]"),
        (np.zeros((0, 8, 3), np.uint8), r"image has the shape \[0, 8, 3\].*none empty"),
        (np.zeros(8, np.uint8), r"image has the shape \[8\]"),
    ],
)
def test_other_values_are_refused(image, text):
    with pytest.raises(InvalidRequest, match=text):
        image_bytes(image, "image")


def test_a_tensor_is_no_image():
    torch = pytest.importorskip("torch")

    with pytest.raises(InvalidRequest, match="tensors are taken for embeddings"):
        image_bytes(torch.zeros(4), "image")


def test_an_image_whose_file_is_damaged_is_refused():
    whole = io.BytesIO()
    Image.fromarray(VALUES[:, :, :3]).save(whole, "PNG")
    damaged = Image.open(io.BytesIO(whole.getvalue()[:60]))

    with pytest.raises(InvalidRequest, match=r"image cannot be read"):
        image_bytes(damaged, "image")
