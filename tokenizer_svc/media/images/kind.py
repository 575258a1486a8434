"""Image kind: finds the image processor of a model and the rules of its family. Called once, when the service starts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tetrad.tokenizer_svc.media.embeds import EmbedsRules, embeds_size
from tetrad.tokenizer_svc.media.images.families.family import Family
from tetrad.tokenizer_svc.media.images.families.model import BESIDE_OTHERS, ImageModel
from tetrad.tokenizer_svc.media.images.families.table import family_of
from tetrad.tokenizer_svc.media.items import Marks
from tetrad.tokenizer_svc.media.kinds import MediaKind, MediaRules, ProcessLimits, unchanged
from tetrad.tokenizer_svc.media.model_files import ModelFiles
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer

_MODULE = "tetrad.tokenizer_svc.media.images.image_process"
_SUFFIX = re.compile(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$")
_REPLACED = {"Qwen2_5_VLImageProcessor": "Qwen2VLImageProcessor"}
"""Image processors in older files, and what has replaced them."""


@dataclass(frozen=True)
class ImageOptions:
    """What an operator chooses for images.

    Attributes:
        limits: limits of one image.
        max_items: maximum number of images of a prompt.
        max_pixels: maximum number of pixels of an image file.
    """

    limits: ProcessLimits = field(default_factory=ProcessLimits)
    max_items: int = 999
    max_pixels: int = 178_956_970


def image_kind(tokenizer: Tokenizer, options: ImageOptions) -> MediaKind | None:
    """Return how a model takes images; None: it takes none."""
    files = ModelFiles(tokenizer)
    family = family_of(files)
    if family is None or not files.image_processor:
        return None
    return MediaKind(
        modality="image",
        module=_MODULE,
        arguments={**_processor(files, family), "max_pixels": options.max_pixels},
        kwargs=family.kwargs,
        limits=options.limits,
        max_items=options.max_items,
        rules=partial(_rules, tokenizer, family),
    )


def _rules(tokenizer: Tokenizer, family: Family, settings: Mapping[str, Any]) -> MediaRules:
    model = ImageModel(tokenizer, settings)
    return MediaRules(
        modality="image",
        settings=model.settings,
        marks=Marks(family.placeholder(model), model.mark, model.mark_id),
        message_text=family.message_text(model),
        max_embeds=family.max_embeds(model),
        expand=partial(family.expand, model),
        grid=partial(family.grid, model),
        prompt_kwargs=_beside_others if family.splits_single else unchanged,
        embeds=_embeds(model, family),
    )


def _embeds(model: ImageModel, family: Family) -> EmbedsRules | None:
    if family.expand_embeds is None:
        return None
    return EmbedsRules("image_embeds", embeds_size(model), family.embeds_grid, partial(family.expand_embeds, model))


def _beside_others(kwargs: Mapping[str, Any], num_items: int) -> Mapping[str, Any]:
    return {**kwargs, BESIDE_OTHERS: True} if num_items > 1 else kwargs


def _processor(files: ModelFiles, family: Family) -> dict[str, Any]:
    """Return the arguments of PilProcessor."""
    settings = dict(files.image_processor)
    given = settings.pop("image_processor_type", None) or settings.pop("feature_extractor_type", None)
    name = _SUFFIX.sub("ImageProcessor", given) if isinstance(given, str) else family.image_processor
    return {
        "settings": {**settings, **family.settings(files)},
        "class_name": _REPLACED.get(name, name),
        "stacked": family.stacked,
        "repeats_frames": family.repeats_frames,
    }
