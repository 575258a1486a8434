"""Audio kind: finds the feature extractor of a model and the rules of its family. Called once, when the service starts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tetrad.services.errors import ModelError
from tetrad.tokenizer_svc.media.audio import whisper
from tetrad.tokenizer_svc.media.audio.families import AUDIO_FAMILIES, AudioFamily, AudioModel
from tetrad.tokenizer_svc.media.embeds import EmbedsRules, embeds_size
from tetrad.tokenizer_svc.media.items import Expansion, Marks
from tetrad.tokenizer_svc.media.kinds import MediaKind, MediaRules, ProcessLimits
from tetrad.tokenizer_svc.media.model_files import ModelFiles
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer

_MODULE = "tetrad.tokenizer_svc.media.audio.audio_process"
_EXTRACTOR = "WhisperFeatureExtractor"


@dataclass(frozen=True)
class AudioOptions:
    """What an operator chooses for audio.

    Attributes:
        limits: limits of one audio.
        max_items: maximum number of audios of a prompt.
        max_seconds: maximum duration of an audio file.
    """

    limits: ProcessLimits = field(default_factory=ProcessLimits)
    max_items: int = 999
    max_seconds: float = 600.0


def audio_kind(tokenizer: Tokenizer, options: AudioOptions) -> MediaKind | None:
    """Return how a model takes audio; None: it takes none."""
    files = ModelFiles(tokenizer)
    model_type = str(files.config.get("model_type"))
    family = AUDIO_FAMILIES.get(model_type)
    if (family is None and model_type != whisper.MODEL_TYPE) or not files.feature_extractor:
        return None
    settings = dict(files.feature_extractor)
    return MediaKind(
        modality="audio",
        module=_MODULE,
        arguments={
            "settings": settings,
            "class_name": settings.get("feature_extractor_type") or _EXTRACTOR,
            "mask": family.mask if family else "",
            "max_windows": family.max_windows(files, int(settings.get("chunk_length", 30))) if family else 1,
            "has_windows": family is not None and family.has_windows,
            "frames_multiple": family.frames_multiple if family else 0,
            "max_seconds": options.max_seconds,
        },
        kwargs=(),
        limits=options.limits,
        max_items=options.max_items if family else min(1, options.max_items),
        rules=partial(_rules, tokenizer, family) if family else partial(whisper.whisper_rules, tokenizer),
    )


def _rules(tokenizer: Tokenizer, family: AudioFamily, settings: Mapping[str, Any]) -> MediaRules:
    model = AudioModel(tokenizer, settings)
    max_embeds = family.max_embeds(model)
    if not max_embeds:
        raise ModelError("preprocessor_config.json has a chunk_length of no embeddings.", field="model")
    return MediaRules(
        modality="audio",
        settings=model.settings,
        marks=Marks(model.mark, model.mark, model.mark_id),
        message_text=family.message_text(model.mark),
        max_embeds=max_embeds,
        expand=partial(family.expand, model),
        embeds=EmbedsRules("audio_embeds", embeds_size(model), "", lambda _, number: Expansion(model.mark, 1, number)),
    )
