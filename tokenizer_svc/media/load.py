"""Media loading: opens the processors of a model that reads media. Called once, when the service starts."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from tetrad.services.errors import InternalError, ModelError
from tetrad.services.log import get_logger
from tetrad.tokenizer_svc.media.feature_cache import FeatureCache
from tetrad.tokenizer_svc.media.kinds import MediaKind
from tetrad.tokenizer_svc.media.preprocessor import Preprocessor
from tetrad.tokenizer_svc.media.processes import MediaProcesses
from tetrad.tokenizer_svc.media.prompts import ModelMedia
from tetrad.tokenizer_svc.observability.metrics import TokenizerMetrics
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer

log = get_logger()


async def open_media(
    tokenizer: Tokenizer,
    model: str,
    kinds: Sequence[MediaKind],
    *,
    processor_kwargs: Mapping[str, Any],
    cache_bytes: int,
    max_message_bytes: int,
    metrics: TokenizerMetrics,
) -> ModelMedia:
    """Return what preprocesses a model's media.

    A modality whose processor cannot be used is refused with the reason; the model is served without it.

    Args:
        tokenizer: the model's tokenizer.
        model: the model's name.
        kinds: the modalities that it takes.
        processor_kwargs: settings of the processors that replace those of the model's files.
        cache_bytes: maximum bytes of preprocessed items that are kept.
        max_message_bytes: maximum bytes of a prompt's preprocessed items together.
        metrics: counts items.

    Raises:
        ModelError: there are settings that the model does not take.
    """
    _check_kwargs(processor_kwargs, [name for kind in kinds for name in kind.kwargs])
    cache = FeatureCache(cache_bytes)
    opened: dict[str, Preprocessor] = {}
    reasons: dict[str, str] = {}
    media = ModelMedia(tokenizer, model, opened, reasons, max_message_bytes=max_message_bytes)
    for kind in kinds:
        kwargs = {name: value for name, value in processor_kwargs.items() if name in kind.kwargs}
        arguments = {**kind.arguments, "settings": {**kind.arguments["settings"], **kwargs}}
        processes = MediaProcesses(kind.module, arguments, kind.limits, kind.modality)
        try:
            rules = kind.rules(await processes.describe())
        except (ModelError, InternalError, KeyError, TypeError, ValueError) as error:  # a processor's settings may be anything
            await processes.close()
            reason = f"{type(error).__name__}: {error}" if isinstance(error, (KeyError, TypeError, ValueError)) else str(error)
            if kwargs:
                await media.close()
                text = f"mm_processor_kwargs {kwargs!r:.200} cannot be used: {' '.join(reason.split())}"
                raise ModelError(text, field="mm_processor_kwargs") from error
            log.warning("media.unavailable", model=model, modality=kind.modality, reason=reason)
            reasons[kind.modality] = f"This server cannot read {kind.modality} input for {model}: {reason}"
            continue
        except asyncio.CancelledError:  # the service ends while it starts
            await processes.close()
            await media.close()
            raise
        opened[kind.modality] = Preprocessor(
            rules,
            processes,
            cache,
            kwargs=tuple(kind.kwargs),
            io_kwargs=tuple(kind.io_kwargs),
            tokenizer_hash=tokenizer.hash,
            max_items=kind.max_items,
            metrics=metrics,
        )
        log.info("media.ready", modality=kind.modality, max_embeds=rules.max_embeds, placeholder=rules.marks.placeholder)
    return media


def _check_kwargs(kwargs: Mapping[str, Any], taken: Sequence[str]) -> None:
    if unknown := kwargs.keys() - set(taken):
        text = f"mm_processor_kwargs has {min(unknown)!r}; this model takes {', '.join(dict.fromkeys(taken)) or 'none'}."
        raise ModelError(text, field="mm_processor_kwargs")
