"""Conversion of a PIL image's mode, under vLLM's import path."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image


def convert_image_mode(image: "Image", to_mode: str) -> "Image":
    """Return an image in another mode of PIL, as "RGB"; what is transparent in an RGBA image becomes white in an RGB image."""
    if image.mode == to_mode:
        return image
    return rgba_to_rgb(image) if (image.mode, to_mode) == ("RGBA", "RGB") else image.convert(to_mode)


def rgba_to_rgb(image: "Image", background_color: tuple[int, int, int] | list[int] = (255, 255, 255)) -> "Image":
    """Return an RGBA image on a background of one colour."""
    from PIL import Image

    made = Image.new("RGB", image.size, tuple(background_color))
    made.paste(image, mask=image.getchannel("A"))
    return made
