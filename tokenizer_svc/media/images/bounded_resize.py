"""BoundedResize: makes an image processor refuse sizes above a limit before it resizes to them.

A request's settings, or an image that is long and thin, could ask for an image of gigapixels, and hold the process for seconds.
Knows transformers' backend on Pillow; runs in the image process.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers.image_processing_backends import PilBackend
from transformers.image_utils import SizeDict

from tetrad.tokenizer_svc.media.items import MediaError

MAX_PIXELS = 1 << 26
"""Maximum number of pixels of an image after resizing: more than twice those of any model's own settings."""


class BoundedResize(PilBackend):  # type: ignore[misc] # transformers has no types here
    """The last base class of a processor in `bounded`: its `resize` gets the sizes that the processor has chosen."""

    def resize(self, image: NDArray[Any], size: SizeDict, *args: Any, **kwargs: Any) -> NDArray[Any]:
        """Resize an image [C, H, W]. Raises MediaError if the result would have more pixels than the limit."""
        num_pixels = _num_pixels(image, size)
        if num_pixels > MAX_PIXELS:
            raise MediaError(f"the image would be resized to {num_pixels} pixels; the limit is {MAX_PIXELS}")
        resized: NDArray[Any] = super().resize(image, size, *args, **kwargs)
        return resized


def bounded(processor_class: type[Any]) -> type[Any]:
    """Return the class of an image processor with a limit of the pixels of resized images."""
    # BoundedResize stands between the class and PilBackend, so that `super().resize` of the class leads to it.
    return type(processor_class.__name__, (processor_class, BoundedResize), {})


def _num_pixels(image: NDArray[Any], size: SizeDict) -> int:
    """Return the number of pixels after resizing, without the rounding of sides."""
    if size.height and size.width:
        return int(size.height) * int(size.width)
    height, width = np.shape(image)[-2:]
    limits = (
        (size.shortest_edge, min(height, width)),
        (size.longest_edge, max(height, width)),
        (size.max_height, height),
        (size.max_width, width),
    )
    scale = min((edge / side for edge, side in limits if edge), default=1.0)
    return int(height * width * scale**2)
