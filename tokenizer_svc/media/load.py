"""Image loading: opens the image processor of a model that reads images. Called once, when the service starts."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tetrad.services.errors import InternalError, ModelError
from tetrad.services.log import get_logger
from tetrad.services.message_size import DEFAULT_MAX_MESSAGE_BYTES
from tetrad.tokenizer_svc.media.feature_cache import FeatureCache
from tetrad.tokenizer_svc.media.images.families.family import Family
from tetrad.tokenizer_svc.media.images.families.model import ImageModel, ModelFiles
from tetrad.tokenizer_svc.media.images.families.table import family_of
from tetrad.tokenizer_svc.media.preprocessor import ImagePreprocessor
from tetrad.tokenizer_svc.media.processes import ImageLimits, ImageProcesses
from tetrad.tokenizer_svc.media.prompts import Images, ModelImages, NoImages
from tetrad.tokenizer_svc.observability.metrics import TokenizerMetrics
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer

log = get_logger()

_SUFFIX = re.compile(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$")
_REPLACED = {"Qwen2_5_VLImageProcessor": "Qwen2VLImageProcessor"}
"""Image processors in older files, and what has replaced them."""


@dataclass(frozen=True)
class ImageOptions:
    """What an operator chooses for images.

    Attributes:
        limits: limits of one image.
        cache_bytes: maximum bytes of preprocessed images that are kept.
        max_images: maximum number of images of a prompt.
        processor_kwargs: settings of the image processor that replace those of the model's files.
        max_message_bytes: maximum bytes of a prompt's preprocessed images together.
    """

    limits: ImageLimits
    cache_bytes: int = 256 << 20
    max_images: int = 999
    processor_kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES


async def open_images(tokenizer: Tokenizer, model: str, options: ImageOptions, metrics: TokenizerMetrics) -> Images:
    """Return what preprocesses a model's images.

    A model whose image processor cannot be used is served as one that reads text only, and images are refused with the reason.

    Args:
        tokenizer: the model's tokenizer.
        model: the model's name.
        options: limits and settings.
        metrics: counts images.

    Raises:
        ModelError: the options have settings that the model does not take.
    """
    files = ModelFiles(tokenizer)
    family = family_of(files)
    if family is None or not files.image_processor:
        _check_kwargs(options.processor_kwargs, ())
        return NoImages(model)
    _check_kwargs(options.processor_kwargs, family.kwargs)
    processes = ImageProcesses(_processor(files, family, options.processor_kwargs), options.limits)
    try:
        facts = ImageModel(tokenizer, await processes.describe())
        cache = FeatureCache(options.cache_bytes)
        preprocessor = ImagePreprocessor(
            facts,
            family,
            processes,
            cache,
            tokenizer_hash=tokenizer.hash,
            max_images=options.max_images,
            max_message_bytes=options.max_message_bytes,
            metrics=metrics,
        )
    except (ModelError, InternalError, KeyError, TypeError, ValueError) as error:  # settings of a processor may be anything
        await processes.close()
        reason = f"{type(error).__name__}: {error}" if isinstance(error, (KeyError, TypeError, ValueError)) else str(error)
        if options.processor_kwargs:
            text = f"mm_processor_kwargs {dict(options.processor_kwargs)!r:.200} cannot be used: {' '.join(reason.split())}"
            raise ModelError(text, field="mm_processor_kwargs") from error
        log.warning("images.unavailable", model=model, reason=reason)
        return NoImages(model, f"This server cannot read images for {model}: {reason}")
    except asyncio.CancelledError:  # the service ends while it starts
        await processes.close()
        raise
    log.info("images.ready", max_embeds=preprocessor.max_embeds, placeholder=preprocessor.placeholder)
    return ModelImages(tokenizer, preprocessor)


def _check_kwargs(kwargs: Mapping[str, Any], taken: Sequence[str]) -> None:
    if unknown := kwargs.keys() - set(taken):
        text = f"mm_processor_kwargs has {min(unknown)!r}; this model takes {', '.join(taken) or 'none'}."
        raise ModelError(text, field="mm_processor_kwargs")


def _processor(files: ModelFiles, family: Family, kwargs: Mapping[str, Any]) -> dict[str, object]:
    """Return the arguments of PilProcessor."""
    settings = dict(files.image_processor)
    given = settings.pop("image_processor_type", None) or settings.pop("feature_extractor_type", None)
    name = _SUFFIX.sub("ImageProcessor", given) if isinstance(given, str) else family.image_processor
    name = _REPLACED.get(name, name)
    return {
        "settings": {**settings, **family.settings(files), **kwargs},
        "class_name": name,
        "stacked": family.stacked,
        "repeats_frames": family.repeats_frames,
    }
