"""Settings of tokenizer_svc."""

import os

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from tetrad.services.model_files import DEFAULT_MODEL
from tetrad.services.settings import ServiceSettings


class TokenizerSettings(ServiceSettings):
    """Flags, TETRAD_TOKENIZER_* variables or the keys of a YAML file (--config FILE)."""

    model_config = SettingsConfigDict(env_prefix="TETRAD_TOKENIZER_")

    listen: str = Field("127.0.0.1:50051", description="Address of the gRPC server: host:port or unix:/path.")
    model: str = Field(DEFAULT_MODEL, description="Built-in name, directory, .gguf file or Hugging Face id.")
    tokenizer: str | None = Field(None, description="Where the tokenizer is, if not with the model. Unset: the model.")
    chat_template: str | None = Field(None, description="File with a Jinja template to use instead of the model's own.")
    threads: int = Field(
        min(8, os.cpu_count() or 1),
        ge=1,
        le=256,
        description="Texts encoded at the same time, besides half as many of more than 64 KiB. Unset: the CPUs, at most 8.",
    )
    max_text_bytes: int = Field(
        4 << 20,
        ge=1,
        description="Longest text to encode or prompt to render, in bytes of UTF-8, and most bytes of long texts that are"
        " encoded at the same time. Encoding takes up to 330 bytes of memory for each of them.",
    )
    max_pending_text_bytes: int = Field(
        64 << 20, ge=1, description="Most bytes of texts and conversations that are under way at the same time; more: 429."
    )
    chat_template_timeout_s: float = Field(5.0, gt=0, description="Seconds that rendering one conversation may take.")
    chat_template_memory_bytes: int = Field(
        1 << 30, ge=256 << 20, description="Address space of the process that renders chat templates, in bytes."
    )
