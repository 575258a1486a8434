"""Pictures for tests: encoded images that need no model to make."""

import io

import numpy as np
from PIL import Image


def picture(width: int, height: int, seed: int = 0, form: str = "PNG") -> bytes:
    """Return an encoded RGB image of smooth random colours."""
    small = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC).save(file, form)
    return file.getvalue()
