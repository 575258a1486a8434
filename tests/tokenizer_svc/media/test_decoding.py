"""Files become upright RGB pixels on white."""

import io

import numpy as np
import pytest
from PIL import Image

from tetrad.tokenizer_svc.media.images.decoding import FORMATS, decode_image
from tetrad.tokenizer_svc.media.items import MediaError

RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)


def saved(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def decoded(data: bytes, *, max_pixels: int = 1000) -> Image.Image:
    return decode_image(data, max_pixels=max_pixels)


def two(left: object, right: object, mode: str = "RGB") -> Image.Image:
    """Return an image of two pixels."""
    image = Image.new(mode, (2, 1), left)  # type: ignore[arg-type]
    image.putpixel((1, 0), right)  # type: ignore[arg-type]
    return image


def pixels(image: Image.Image) -> list[tuple[int, ...]]:
    return [tuple(pixel) for pixel in np.asarray(image).reshape(-1, 3).tolist()]


@pytest.mark.parametrize("form", FORMATS)
def test_each_format_is_read(form: str) -> None:
    image = decoded(saved(Image.new("RGB", (20, 10), RED), form))

    assert (image.mode, image.size) == ("RGB", (20, 10))
    assert np.abs(np.asarray(image, np.int16) - RED).max() < 3


def test_a_camera_s_orientation_is_applied() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by a quarter to the left

    image = decoded(saved(two(RED, BLUE), exif=exif))

    assert image.size == (1, 2)
    assert pixels(image) == [RED, BLUE]


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_a_damaged_block_of_exif_leaves_the_image_as_it_is(form: str) -> None:
    image = decoded(saved(two(RED, RED), form, exif=b"Exif\0\0no block of EXIF"))

    assert image.size == (2, 1)


def test_transparent_pixels_are_white() -> None:
    image = decoded(saved(two((*RED, 255), (0, 0, 0, 0), mode="RGBA")))

    assert pixels(image) == [RED, WHITE]


def test_a_transparent_colour_of_a_palette_is_white() -> None:
    palette = two(RED, BLUE).convert("P", palette=Image.Palette.ADAPTIVE)

    image = decoded(saved(palette, transparency=palette.getpixel((1, 0))))

    assert pixels(image) == [RED, WHITE]


@pytest.mark.parametrize(("mode", "form"), [("L", "PNG"), ("1", "PNG"), ("LA", "PNG"), ("CMYK", "JPEG"), ("I;16", "PNG")])
def test_other_modes_become_rgb(mode: str, form: str) -> None:
    image = decoded(saved(Image.new(mode, (4, 3)), form))

    assert (image.mode, image.size) == ("RGB", (4, 3))


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_16_bits_of_grey_become_8(form: str) -> None:
    image = decoded(saved(two(0x8080, 0xFFFF, mode="I;16"), form))

    assert pixels(image) == [(0x80, 0x80, 0x80), WHITE]


def test_an_animation_is_its_first_frame() -> None:
    data = saved(Image.new("RGB", (2, 1), RED), "GIF", save_all=True, append_images=[Image.new("RGB", (2, 1), BLUE)])

    assert pixels(decoded(data)) == [RED, RED]


def test_the_number_of_pixels_is_checked_before_they_are_decoded() -> None:
    data = saved(Image.new("L", (40, 30)))[:60]  # a header alone

    with pytest.raises(MediaError, match=r"40 x 30 pixels, 1200 in all; the limit is 1000 \(max_image_pixels\)"):
        decoded(data)


@pytest.mark.parametrize("form", ["PPM", "ICO", "TGA"])
def test_other_formats_are_refused(form: str) -> None:
    with pytest.raises(MediaError, match="no image of these formats"):
        decoded(saved(Image.new("RGB", (16, 16)), form))
