"""Image bytes: converts an image of a program to the content of an image file, without a loss.

Takes PIL images and numpy arrays without importing either package; bytes are passed on as they are. The tokenizer service
decodes them. Called by media_prompts.py.
"""

import io
from typing import Any

from tetrad.library.png import MOST_CHANNELS, png_of
from tetrad.services.errors import InvalidRequest

_FIELD = "multi_modal_data"
_PNG_MODES = ("1", "I;16", "L", "LA", "P", "RGB", "RGBA")
"""PIL's modes that a PNG file holds; the tokenizer converts them to RGB."""
_FASTEST = 1
"""Level of compression: the file exists only between two processes."""


def image_bytes(image: Any, where: str) -> bytes:
    """Return the content of an image file; InvalidRequest, which names `where`, for a value that is no image.

    Args:
        image: a PIL image; an array [height, width, channels] or [height, width] of uint8, with 1 to 4 channels; or the content
            of an image file.
        where: the name of the value.
    """
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if hasattr(image, "save") and hasattr(image, "mode"):
        return _of_pil(image, where)
    if hasattr(image, "detach"):  # as in vLLM, a torch tensor is no image
        text = (
            f"{where}: tensors are taken for embeddings, [items, positions, hidden size] or a list of [positions, hidden size]"
        )
        raise InvalidRequest(f"{text}, got {type(image).__name__}; give an image as an array.", field=_FIELD)
    if hasattr(image, "__array_interface__"):
        return _of_array(image, where)
    text = f"{where} must be a PIL image, a numpy array or the bytes of an image file, got {type(image).__name__}."
    raise InvalidRequest(text, field=_FIELD)


def _of_pil(image: Any, where: str) -> bytes:
    file = io.BytesIO()
    try:
        # The other modes (CMYK, floats, ...) become RGB in any case, since models read RGB.
        shown = image if image.mode in _PNG_MODES else image.convert("RGB")
        # Without the orientation of a photograph's file: a program's image is as it sees it.
        shown.save(file, "PNG", compress_level=_FASTEST, exif=b"")
    except (OSError, ValueError) as error:  # its file cannot be decoded, or was closed
        raise InvalidRequest(f"{where} cannot be read: {error}.", field=_FIELD) from error
    return file.getvalue()


def _of_array(array: Any, where: str) -> bytes:
    """Return a PNG file with an array's values."""
    shape = tuple(array.shape)
    if array.dtype != "uint8":
        text = f"{where} has the dtype {array.dtype}: the values of an image are uint8, from 0 to 255."
        raise InvalidRequest(text, field=_FIELD)
    height, width, channels = shape if len(shape) == 3 else (*shape, 1) if len(shape) == 2 else (0, 0, 0)
    if not 1 <= channels <= MOST_CHANNELS or not height or not width:
        text = f"{where} has the shape {list(shape)}: an image is [height, width, channels] with 1 to 4 channels, none empty."
        raise InvalidRequest(text, field=_FIELD)
    pixels = array.reshape(height, width, channels)
    differences = pixels.copy()
    differences[:, 1:] -= pixels[:, :-1]
    return png_of(differences.tobytes(), width, height, channels, is_difference=True)
