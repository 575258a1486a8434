"""Media kinds: finds the modalities that a model reads, with the limits of the service's settings. Called once, at start."""

import json

from tetrad.tokenizer_svc.config import TokenizerSettings
from tetrad.tokenizer_svc.media.audio.kind import AudioOptions, audio_kind
from tetrad.tokenizer_svc.media.images.kind import ImageOptions, image_kind
from tetrad.tokenizer_svc.media.kinds import MediaKind, ProcessLimits
from tetrad.tokenizer_svc.media.video.kind import VideoOptions, video_kind
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer


def kinds_of(tokenizer: Tokenizer, settings: TokenizerSettings) -> list[MediaKind]:
    """Return how a model takes each modality that it reads."""
    found = [
        image_kind(tokenizer, _image_options(settings)),
        audio_kind(tokenizer, _audio_options(settings)),
        video_kind(tokenizer, _video_options(settings)),
    ]
    return [kind for kind in found if kind is not None]


def _image_options(settings: TokenizerSettings) -> ImageOptions:
    limits = ProcessLimits(settings.image_processes, settings.image_timeout_s, settings.image_memory_bytes)
    return ImageOptions(limits, settings.max_images_per_prompt, settings.max_image_pixels)


def _audio_options(settings: TokenizerSettings) -> AudioOptions:
    limits = ProcessLimits(settings.audio_processes, settings.audio_timeout_s, settings.audio_memory_bytes)
    return AudioOptions(limits, settings.max_audios_per_prompt, settings.max_audio_seconds)


def _video_options(settings: TokenizerSettings) -> VideoOptions:
    return VideoOptions(
        limits=ProcessLimits(settings.video_processes, settings.video_timeout_s, settings.video_memory_bytes),
        max_items=settings.max_videos_per_prompt,
        max_pixels=settings.max_image_pixels,
        max_frames=settings.max_video_frames,
        io_kwargs=json.loads(settings.media_io_kwargs or "{}").get("video", {}),
    )
