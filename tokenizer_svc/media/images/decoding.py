"""Decoding: turns an image file into RGB pixels with Pillow.

Runs in the image process. Knows file formats and their limits; knows no models. Only the first frame of an animation is read.
"""

import io

from PIL import Image, ImageOps, UnidentifiedImageError

from tetrad.tokenizer_svc.media.items import MediaError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""Formats that are read. Pillow's other readers are older and attacked more often, and no client sends such files."""
_WHITE = (255, 255, 255)


def decode_image(data: bytes, *, max_pixels: int) -> Image.Image:
    """Return an image in RGB, upright as its EXIF orientation says, with transparent parts on white as in vLLM.

    Args:
        data: the file.
        max_pixels: maximum of width times height; it is checked before the pixels are decoded.

    Raises:
        MediaError: the data is no image of `FORMATS`, is damaged, or has more pixels.
    """
    # The check below replaces Pillow's own limit, which only warns up to twice its value.
    Image.MAX_IMAGE_PIXELS = None
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            num_pixels = image.width * image.height
            if num_pixels > max_pixels:
                size = f"{image.width} x {image.height} pixels"
                raise MediaError(f"the image has {size}, {num_pixels} in all; the limit is {max_pixels} (max_image_pixels)")
            image.load()
            return _rgb(upright(image))
    except UnidentifiedImageError:
        raise MediaError(f"the data is no image of these formats: {', '.join(FORMATS)}") from None
    except (MediaError, MemoryError):
        raise
    except Exception as error:  # the readers raise any error of Python for damaged files
        raise MediaError(f"the image is damaged: {error}") from error


def upright(image: Image.Image) -> Image.Image:
    """Return the image turned as its EXIF orientation says; unchanged if its EXIF block is damaged."""
    try:
        return ImageOps.exif_transpose(image)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - the reader of EXIF raises any error of Python, and the pixels are whole
        return image


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        image = _of_16_bits(image)
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    layered = image.convert("RGBA")
    flat = Image.new("RGB", layered.size, _WHITE)
    flat.paste(layered, mask=layered.getchannel("A"))
    return flat


def _of_16_bits(image: Image.Image) -> Image.Image:
    """Return a grey image of 16 bits in 8 bits; Pillow's own conversion makes all values from 255 on white."""
    return image.convert("I").point(lambda value: value / 257 + 0.5).convert("L")
