"""Fetching of an image by its URL for a program, as vLLM does it. Needs Pillow.

It runs in the program, with the program's rights: any host may be named, and any file. Knows no requests.
"""

import io
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.media.items import MediaSource
from tetrad.frontend.media.loader import MediaLoader
from tetrad.library.event_loop_thread import EventLoopThread
from tetrad.multimodal.image import convert_image_mode
from tetrad.services.errors import InvalidRequest

if TYPE_CHECKING:
    from PIL.Image import Image

_WHERE = "image_url"


def fetch_image(image_url: str, image_io_kwargs: dict[str, Any] | None = None) -> "Image":
    """Return the image at a URL, upright and in RGB; what is transparent becomes white.

    Args:
        image_url: an http:, https:, data: or file: URL.
        image_io_kwargs: must be empty.

    Raises:
        InvalidRequest: there is no image at the URL.
    """
    from PIL import Image

    from tetrad.tokenizer_svc.media.images.decoding import FORMATS, upright

    if image_io_kwargs:
        text = f"image_io_kwargs={image_io_kwargs!r} is not supported: images are read as RGB."
        raise InvalidRequest(text, field="image_io_kwargs")
    loop, loader = EventLoopThread(), MediaLoader(_rules())
    try:
        [item] = loop.run(loader.load([MediaSource(where=_WHERE, url=image_url)]))
    finally:
        loop.close()
        loader.close()
    try:
        # Only the formats of prompts: Pillow has others that start programs, as Ghostscript for EPS.
        image = Image.open(io.BytesIO(item.data), formats=FORMATS)
        return convert_image_mode(upright(image), "RGB")
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise InvalidRequest(f"Failed to load image: {error}", field=_WHERE) from error


@cache
def _rules() -> FrontendSettings:
    """Return the rules of fetching. Not made at import: the environment may have wrong settings of a frontend."""
    return FrontendSettings(
        allowed_media_domains=("*",),
        allowed_media_networks=("0.0.0.0/0", "::/0"),
        allowed_local_media_path=Path("/"),
        max_media_redirects=5,
        max_media_bytes=256 << 20,
        max_message_bytes=256 << 20,
    )
