"""Settings of tokenizer_svc."""

import os

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from tetrad.services.hub.model_files import DEFAULT_MODEL
from tetrad.services.settings import JsonObject, ServiceSettings
from tetrad.tokenizer_svc.io_kwargs import IoKwargs


class TokenizerSettings(ServiceSettings):
    """Options of the tokenizer.

    Each is a flag (--threads), an environment variable (TETRAD_TOKENIZER_THREADS) or a key of a YAML file
    (threads, with --config FILE).
    """

    model_config = SettingsConfigDict(env_prefix="TETRAD_TOKENIZER_")

    listen: str = Field("127.0.0.1:50051", description="Address of the gRPC server: host:port or unix:/path.")
    model: str = Field(DEFAULT_MODEL, description="Built-in name, directory, .gguf file or Hugging Face id.")
    tokenizer: str | None = Field(
        None, description="Model whose tokenizer to use, in the same forms. Unset: the model's own tokenizer."
    )
    chat_template: str | None = Field(
        None,
        description="File with a Jinja chat template that replaces the model's own, and writes the pairs of "
        "texts that a cross-encoder scores.",
    )
    threads: int = Field(
        min(8, os.cpu_count() or 1),
        ge=1,
        le=256,
        description="Number of texts encoded at the same time, besides half as many texts of more than 64 KiB. Unset: the "
        "number of CPUs, at most 8.",
    )
    max_text_bytes: int = Field(
        4 << 20,
        ge=1,
        description="Maximum size of a text to encode or a rendered prompt, in bytes of UTF-8, and of all long texts being "
        "encoded at the same time. Encoding needs up to 330 bytes of memory for each of these bytes.",
    )
    max_pending_text_bytes: int = Field(
        64 << 20,
        ge=1,
        description="Maximum size of all texts and conversations being processed at the same time, in bytes; further requests "
        "get status 429.",
    )
    chat_template_timeout_s: float = Field(5.0, gt=0, description="Maximum time to render a conversation, in seconds.")
    chat_template_memory_bytes: int = Field(
        1 << 30, ge=256 << 20, description="Address space of the process that renders chat templates, in bytes."
    )
    image_processes: int = Field(
        min(2, os.cpu_count() or 1),
        ge=1,
        le=64,
        description="Number of images preprocessed at the same time, each in its own process. Unset: 2, or 1 on one CPU.",
    )
    image_timeout_s: float = Field(20.0, gt=0, description="Maximum time to preprocess an image, in seconds.")
    image_memory_bytes: int = Field(
        2 << 30, ge=512 << 20, description="Address space of a process that preprocesses images, in bytes."
    )
    max_image_pixels: int = Field(178_956_970, ge=1, description="Maximum number of pixels of an image as it is sent.")
    max_images_per_prompt: int = Field(999, ge=0, description="Maximum number of images of a prompt.")
    audio_processes: int = Field(
        1, ge=1, le=64, description="Number of audio files preprocessed at the same time, each in its own process."
    )
    audio_timeout_s: float = Field(30.0, gt=0, description="Maximum time to preprocess an audio file, in seconds.")
    audio_memory_bytes: int = Field(
        2 << 30, ge=512 << 20, description="Address space of a process that preprocesses audio, in bytes."
    )
    max_audio_seconds: float = Field(600.0, gt=0, description="Maximum duration of an audio file, in seconds.")
    max_audios_per_prompt: int = Field(999, ge=0, description="Maximum number of audio files of a prompt.")
    video_processes: int = Field(
        1, ge=1, le=64, description="Number of videos preprocessed at the same time, each in its own process."
    )
    video_timeout_s: float = Field(30.0, gt=0, description="Maximum time to preprocess a video, in seconds.")
    video_memory_bytes: int = Field(
        2 << 30, ge=512 << 20, description="Address space of a process that preprocesses videos, in bytes."
    )
    max_video_frames: int = Field(768, ge=1, description="Maximum number of frames that are read of a video.")
    max_videos_per_prompt: int = Field(999, ge=0, description="Maximum number of videos of a prompt.")
    mm_processor_kwargs: JsonObject = Field(
        "",
        description='Settings of the image processor that replace those of the model\'s files, a JSON object: {"max_pixels": '
        "200704}. Requests may set others. Empty: none.",
    )
    media_io_kwargs: IoKwargs = Field(
        "",
        description='How media files are read, a JSON object: {"video": {"num_frames": 16, "fps": 1}}. Requests may set '
        "others. Empty: at most 32 frames of a video, and as many a second as its model's processor reads.",
    )
    max_pending_media_bytes: int = Field(
        256 << 20,
        ge=1,
        description="Maximum size of all media being preprocessed at the same time, in bytes of their files; further requests "
        "get status 429.",
    )
    media_cache_bytes: int = Field(
        256 << 20, ge=0, description="Maximum size of preprocessed media that are kept for later requests, in bytes."
    )
