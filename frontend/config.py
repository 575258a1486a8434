"""Settings of the frontend: flags, TETRAD_FRONTEND_* and YAML. What a person decides; facts about models are no settings."""

import json
from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from tetrad.services.settings import ServiceSettings

Names = Annotated[tuple[str, ...], NoDecode]


class FrontendSettings(ServiceSettings):
    """Where to listen, whom to ask, what to refuse."""

    model_config = SettingsConfigDict(env_prefix="TETRAD_FRONTEND_")

    host: str = Field("127.0.0.1", description="Address of the HTTP server.")
    port: int = Field(8000, ge=0, le=65535, description="Port of the HTTP server. 0: any free port.")
    grpc_port: int | None = Field(None, ge=0, le=65535, description="Port of the public gRPC API on `host`. Unset: none.")
    listen: str = Field("", description="Public gRPC API elsewhere: host:port or unix:/path. Empty: see grpc-port.")

    tokenizer_target: str = Field("127.0.0.1:50051", description="The tokenizer: host:port, dns:///name:port or unix:/path.")
    engine_targets: Names = Field(
        ("127.0.0.1:50052",), min_length=1, description="Engine cores, separated by commas; requests go to the least busy."
    )
    model: str = Field("", description="What the served names stand for, for /v1/models. Empty: as the tokenizer says.")
    served_model_names: Names = Field((), description="Names clients may ask for, separated by commas. Empty: the model's.")

    ready_timeout_s: float = Field(600.0, gt=0, description="Seconds to wait for the tokenizer and the engines at start.")
    recovery_timeout_s: float = Field(
        60.0, gt=0, description="Seconds a lost tokenizer or engine may stay away before its requests fail."
    )
    request_timeout_s: float | None = Field(None, gt=0, description="Seconds after which a request is given up. Unset: never.")
    drain_timeout_s: float = Field(4.0, ge=0, description="Seconds that running requests may take to finish after SIGTERM.")
    keep_alive_timeout_s: int = Field(75, ge=1, description="Seconds an idle HTTP connection is kept.")

    max_body_bytes: int = Field(32 << 20, ge=1024, description="Largest HTTP request body, in bytes.")
    max_chars_per_token: int = Field(
        128, ge=1, description="A text longer than this times the context is refused before it is tokenized."
    )
    max_logprobs: int = Field(20, ge=-1, description="Most log-probabilities a token that a request may ask for. -1: any.")
    max_stop_strings: int = Field(4, ge=0, description="Most stop strings of a request.")
    max_stop_chars: int = Field(1024, ge=1, description="Longest stop string, in characters.")
    max_bad_words: int = Field(128, ge=0, description="Most bad words of a request.")
    max_n: int = Field(1024, ge=1, description="Most outputs of a request.")
    max_completion_prompts: int = Field(1024, ge=1, description="Most prompts of one /v1/completions request.")
    metrics_prefix: str = Field("tetrad", description="Prefix of metric names; `vllm` serves existing dashboards.")
    use_generation_config: bool = Field(True, description="Take sampling defaults from the model's generation config.")

    @field_validator("engine_targets", "served_model_names", mode="before")
    @classmethod
    def _split_names(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        if value.lstrip().startswith("["):
            return tuple(json.loads(value))
        return tuple(part.strip() for part in value.split(",") if part.strip())

    @property
    def grpc_address(self) -> str | None:
        """Where the public gRPC API listens; None: nowhere."""
        if self.listen:
            return self.listen
        return None if self.grpc_port is None else f"{self.host}:{self.grpc_port}"
