"""Settings of media: where images, audio and videos of requests may come from, and how many and how large they may be."""

import json
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, field_validator

from tetrad.frontend.media.addresses import parse_networks
from tetrad.frontend.media.items import MODALITIES
from tetrad.frontend.public_settings import PublicSettings
from tetrad.services.settings import Names, OptionalPath

ALL_HOSTS = "*"


def item_limits(text: str) -> dict[str, int]:
    """Return the operator's limits by modality; ValueError for another form than those of vLLM's `--limit-mm-per-prompt`."""
    try:
        given = json.loads(text or "{}")
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise ValueError('must be a JSON object such as {"image": 4}')  # noqa: TRY004 - pydantic takes no TypeError
    return {modality: _count(modality, value) for modality, value in given.items()}


def _count(modality: str, value: object) -> int:
    if modality not in MODALITIES:
        raise ValueError(f"has the modality {modality[:64]!r}; there are {', '.join(MODALITIES)}")
    if isinstance(value, dict):
        size = next((name for name in value if name != "count"), None)
        if size is not None:
            raise ValueError(f"sets {size[:64]!r} of {modality}, which has no effect here: memory follows from the model alone")
        value = value.get("count")
    if type(value) is not int or value < 0:
        raise ValueError(f"must have a number of items, 0 or more, for {modality}, got {value!r:.64}")
    return value


def _checked_limits(text: str) -> str:
    item_limits(text)
    return text


ItemLimits = Annotated[str, AfterValidator(_checked_limits)]
"""Limits by modality, a JSON object as text."""


class MediaSettings(PublicSettings):
    """Options of images, audio and videos in prompts; see FrontendSettings."""

    limit_mm_per_prompt: ItemLimits = Field(
        "",
        description='Maximum number of items of each kind in a prompt, a JSON object: {"image": 4, "video": 1} or {"image": '
        '{"count": 4}}. Empty: 999, or the model\'s own limit.',
    )
    enable_mm_embeds: bool = Field(
        False,
        description="Accept embeddings of images and audio that clients have computed themselves (parts image_embeds and "
        "audio_embeds of messages, tensors in multi_modal_data). Enable it only for trusted clients, since they choose the "
        "input vector of each position.",
    )
    max_media_bytes: int = Field(20 << 20, ge=1024, description="Maximum size of an image file, in bytes.")
    max_speech_bytes: int = Field(
        25 << 20, ge=1024, description="Maximum size of an audio file to transcribe or translate, in bytes."
    )
    max_audio_bytes: int = Field(25 << 20, ge=1024, description="Maximum size of an audio file in a prompt, in bytes.")
    max_video_bytes: int = Field(
        100 << 20, ge=1024, description="Maximum size of a video file, in bytes. max-body-bytes limits those in HTTP requests."
    )
    allowed_media_domains: Names = Field(
        (),
        description="Host names, separated by commas, from which URLs of media (http, https) are fetched; *: all "
        "public hosts. Empty: no URL is fetched, and clients send files in base64.",
    )
    allowed_media_networks: Names = Field(
        (),
        description="Networks in CIDR notation, separated by commas, that these URLs may lead to although their addresses are "
        "not public, such as 10.1.0.0/16. Empty: public addresses only.",
    )
    max_media_redirects: int = Field(
        0,
        ge=0,
        le=5,
        description="Maximum number of redirects that are followed for such a URL; each one is checked like the URL itself.",
    )
    media_fetch_timeout_s: float = Field(10.0, gt=0, description="Seconds that an image may take to be fetched.")
    audio_fetch_timeout_s: float = Field(10.0, gt=0, description="Seconds that an audio file may take to be fetched.")
    video_fetch_timeout_s: float = Field(30.0, gt=0, description="Seconds that a video may take to be fetched.")
    max_media_fetches: int = Field(
        32,
        ge=1,
        description="Maximum number of media files that are fetched at the same time. Further ones wait for "
        "media-fetch-timeout-s, and then get status 429.",
    )
    allowed_local_media_path: OptionalPath = Field(
        None, description="Directory whose files clients may name as file: URLs of media. Unset: none."
    )

    @field_validator("allowed_media_domains")
    @classmethod
    def _check_domains(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if name != ALL_HOSTS and (not name or any(sign in name for sign in "/:*@ ")):
                raise ValueError(f"must be host names without scheme, port or path, got {name[:80]!r}")
        return tuple(name.lower() for name in value)

    @field_validator("allowed_local_media_path")
    @classmethod
    def _check_directory(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_dir():
            raise ValueError("must be a directory that exists")
        return value

    @field_validator("allowed_media_networks")
    @classmethod
    def _check_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        parse_networks(value)
        return value
