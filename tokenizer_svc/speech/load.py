"""Speech loading: opens what prepares recordings for a model that reads speech. Called once, when the service starts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tetrad.services.errors import ModelError
from tetrad.services.log import get_logger
from tetrad.tokenizer_svc.media.kinds import ProcessLimits
from tetrad.tokenizer_svc.media.model_files import ModelFiles
from tetrad.tokenizer_svc.media.processes import MediaProcesses
from tetrad.tokenizer_svc.speech.plans import SpeechPrompts
from tetrad.tokenizer_svc.speech.recordings import Recordings
from tetrad.tokenizer_svc.speech.whisper import WhisperPrompts
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer

_MODULE = "tetrad.tokenizer_svc.speech.speech_process"
_RATE = 16_000

log = get_logger()


@dataclass(frozen=True)
class SpeechFamily:
    """What is known of a family before its files are read.

    Attributes:
        prompts: makes the prompts of a model.
        mask: see PieceExtractor.
    """

    prompts: Callable[[Tokenizer], SpeechPrompts]
    mask: str = ""


_FAMILIES: Mapping[str, SpeechFamily] = {"whisper": SpeechFamily(WhisperPrompts)}
"""Families by model_type."""


def open_recordings(tokenizer: Tokenizer, limits: ProcessLimits, *, max_seconds: float) -> Recordings | None:
    """Return what prepares recordings for a model; None if it reads no speech, or its files lack what is needed.

    Args:
        tokenizer: the model's tokenizer.
        limits: limits of one recording, and the number of processes; these start with the first recordings.
        max_seconds: maximum duration of a recording.
    """
    files = ModelFiles(tokenizer)
    family = _FAMILIES.get(str(files.config.get("model_type")))
    settings: Mapping[str, Any] = files.feature_extractor
    if family is None or not settings:
        return None
    try:
        prompts = family.prompts(tokenizer)
    except (ModelError, KeyError, TypeError, ValueError) as error:  # a model's files may have anything
        log.warning("speech.unavailable", reason=f"{type(error).__name__}: {error}")
        return None
    arguments = {"settings": dict(settings), "max_seconds": max_seconds, "mask": family.mask}
    processes = MediaProcesses(_MODULE, arguments, limits, "audio")
    rate = int(settings.get("sampling_rate", _RATE))
    return Recordings(prompts, processes, sampling_rate=rate, tokenizer_hash=tokenizer.hash)
