"""Media kinds: finds the modalities that a model reads, with the limits of the service's settings. Called once, at start."""

from tetrad.tokenizer_svc.config import TokenizerSettings
from tetrad.tokenizer_svc.media.images.kind import ImageOptions, image_kind
from tetrad.tokenizer_svc.media.kinds import MediaKind, ProcessLimits
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer


def kinds_of(tokenizer: Tokenizer, settings: TokenizerSettings) -> list[MediaKind]:
    """Return how a model takes each modality that it reads."""
    found = [image_kind(tokenizer, _image_options(settings))]
    return [kind for kind in found if kind is not None]


def _image_options(settings: TokenizerSettings) -> ImageOptions:
    limits = ProcessLimits(settings.image_processes, settings.image_timeout_s, settings.image_memory_bytes)
    return ImageOptions(limits, settings.max_images_per_prompt, settings.max_image_pixels)
