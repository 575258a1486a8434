"""Settings of the frontend: flags, TETRAD_FRONTEND_* and YAML. People choose them; facts about models are no settings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from tetrad.frontend.net.discovery import check_target
from tetrad.frontend.parsing.registry import REASONING_FORMATS, TOOL_FORMATS, Format, choose_format
from tetrad.services.errors import InvalidRequest
from tetrad.services.settings import Names, ServiceSettings
from tetrad.services.tls import TlsFiles

GATEWAY_APIS = ("smg", "vllm")


class FrontendSettings(ServiceSettings):
    """Flags, TETRAD_FRONTEND_* variables or the keys of a YAML file (--config FILE)."""

    model_config = SettingsConfigDict(env_prefix="TETRAD_FRONTEND_")

    host: str = Field("127.0.0.1", description="Address of the HTTP server.")
    port: int = Field(8000, ge=0, le=65535, description="Port of the HTTP server. 0: any free port.")
    grpc_port: int | None = Field(None, ge=0, le=65535, description="Port of the public gRPC API on `host`. Unset: none.")
    listen: str = Field("", description="Public gRPC API elsewhere: host:port or unix:/path. Empty: see grpc-port.")
    http_fd: int | None = Field(
        None,
        description="File descriptor of a bound socket for HTTP, inherited from a parent that keeps it open: connections wait "
        "while there is no frontend. Unset: bind host and port.",
    )
    private_listen: str = Field(
        "",
        description="The gRPC API for whoever supervises this frontend, besides the public one: unix:/path. Two frontends that "
        "have one may share the public port, for the moment in which one succeeds the other. Empty: none.",
    )

    gateway_apis: Names = Field(
        ("auto",),
        description="Foreign gRPC APIs on the port of the public one, separated by commas: smg (vllm.grpc.engine, needs the"
        " package smg-grpc-proto), vllm (vllm.Inference, vllm.Control). auto: those that can be served. Empty: none.",
    )

    tokenizer_targets: Names = Field(
        ("127.0.0.1:50051",),
        min_length=1,
        description="Tokenizers of the same model, separated by commas: host:port, unix:/path, or dns:///name:port for all that"
        " have the name. Each can answer for another that is lost.",
    )
    engine_targets: Names = Field(
        ("127.0.0.1:50052",),
        min_length=1,
        description="Engine cores of the same model, written as the tokenizers are; see prefix-affinity.",
    )
    engine_admin_targets: Names = Field(
        ("127.0.0.1:50054",),
        description="Admin ports of the engine cores, in the same order, and by name where these are. Empty: nobody operates"
        " them, and what their caches hold is guessed.",
    )
    dns_refresh_interval_s: float = Field(
        5.0, gt=0, description="Seconds after which the names in targets are looked up again; at once when somebody is lost."
    )
    prefix_affinity: float = Field(
        16.0,
        ge=0,
        description="Requests that an engine core may have more than others and still get those whose prompt is in its cache"
        " (a quarter of what each has on average, if that is more). 0: the least busy gets each request.",
    )

    model: str = Field("", description="What the served names stand for, for /v1/models. Empty: as the tokenizer says.")
    served_model_names: Names = Field((), description="Names clients may ask for, separated by commas. Empty: the model's.")

    api_key: Names = Field(
        (), repr=False, description="Keys of which a request needs one, separated by commas or repeated. Empty: none needed."
    )
    api_key_file: Path | None = Field(
        None, description="File of further keys, one a line; read again when it changes. Unset: none."
    )
    operator_api_key: Names = Field(
        (), repr=False, description="Keys that also open the operator endpoints: pause, sleep, reset_prefix_cache and the like."
    )
    operator_endpoints: Literal["auto", "on", "off"] = Field(
        "auto",
        description="Who may operate. auto: holders of an operator key; without such keys everybody, if the server is bound to "
        "this machine and needs no keys at all, else nobody. on: whoever may send requests. off: nobody.",
    )
    ssl_certfile: Path | None = Field(
        None,
        description="Certificate chain of the public ports, HTTP and gRPC, PEM, read again when it changes. Unset: that of "
        "tls-cert-file, else they are plain.",
    )
    ssl_keyfile: Path | None = Field(None, description="Private key of ssl-certfile, PEM, without a password.")
    ssl_ca_certs: Path | None = Field(
        None, description="Authorities, PEM, of which callers of the public ports must show a certificate. Unset: none needed."
    )
    allowed_origins: Names = Field(
        (), description="Origins of web pages that may call this server (CORS), separated by commas; * is any. Empty: none."
    )
    allowed_methods: Names = Field(("*",), description="Methods that those pages may use, separated by commas; * is any.")
    allowed_headers: Names = Field(("*",), description="Headers that those pages may send, separated by commas; * is any.")
    allow_credentials: bool = Field(False, description="Let those pages send cookies; needs allowed-origins without *.")

    console: bool = Field(True, description="Serve the console, a web page, at / of the HTTP server.")

    ready_timeout_s: float = Field(
        600.0,
        gt=0,
        description="Seconds after which a frontend that has never been ready gives up and exits. Until then it is alive and"
        " refuses requests.",
    )
    recovery_timeout_s: float = Field(
        60.0, gt=0, description="Seconds a lost tokenizer or engine may stay away before its requests fail."
    )
    tokenizer_stall_s: float = Field(
        5.0,
        gt=0,
        description="Seconds that a tokenizer may take to answer before another one, where there is one, is asked. Long texts"
        " and chat templates of clients stay with the first one, unless it is lost.",
    )
    request_timeout_s: float | None = Field(None, gt=0, description="Seconds after which a request is given up. Unset: never.")
    drain_timeout_s: float = Field(4.0, ge=0, description="Seconds that running requests may take to finish after SIGTERM.")
    retire_timeout_s: float = Field(
        600.0, ge=0, description="Seconds that running requests may take to finish after SIGUSR1: a successor is there already."
    )
    keep_alive_timeout_s: int = Field(75, ge=1, description="Seconds an idle HTTP connection is kept.")

    sse_keep_alive_s: float = Field(
        15.0, gt=0, description="Seconds without news after which a stream of events gets a comment, for proxies to keep it."
    )
    slow_client_timeout_s: float = Field(
        60.0, gt=0, description="Seconds after which a client that takes nothing of what is sent to it is dropped."
    )
    header_timeout_s: float = Field(10.0, gt=0, description="Seconds that the head of an HTTP request may take to arrive.")
    body_timeout_s: float = Field(
        30.0, gt=0, description="Seconds in which the rest of an HTTP request's body, or 64 KiB of it, must arrive."
    )
    max_connections: int = Field(
        16384, ge=1, description="Most HTTP connections; more get a 503. Fewer if the limit on open files says so."
    )
    max_num_requests: int = Field(
        8192, ge=0, description="Most unfinished requests, each of n outputs counted; more get a 429. 0: no limit."
    )
    max_num_queued_tokens: int = Field(
        8 << 20, ge=0, description="Most prompt tokens of requests that wait for their first token; more: 429. 0: no limit."
    )

    max_body_bytes: int = Field(32 << 20, ge=1024, description="Largest HTTP request body, in bytes.")
    max_total_body_bytes: int = Field(
        512 << 20, ge=1024, description="Most bytes of HTTP request bodies that are being read at the same time; more: 429."
    )
    max_body_objects: int = Field(16384, ge=16, description="Most JSON objects and lists in an HTTP request body.")
    max_body_values: int = Field(1 << 20, ge=16, description="Most values in the lists and objects of an HTTP request body.")
    max_header_bytes: int = Field(64 << 10, ge=1024, description="Longest request line and headers together, in bytes.")
    max_chars_per_token: int = Field(
        128, ge=1, description="A text longer than this times the context is refused before it is tokenized."
    )
    max_logprobs: int = Field(20, ge=-1, description="Most log-probabilities a token that a request may ask for. -1: any.")
    max_answer_logprobs: int = Field(
        1 << 19,
        ge=0,
        description="Most log-probabilities of a whole answer, its n outputs and prompt, if it has more than 128 a token; more "
        "are refused. 0: no limit.",
    )
    max_stop_strings: int = Field(4, ge=0, description="Most stop strings of a request.")
    max_stop_chars: int = Field(1024, ge=1, description="Longest stop string, in characters.")
    max_bad_words: int = Field(128, ge=0, description="Most bad words of a request.")
    max_bad_word_chars: int = Field(1024, ge=1, description="Longest bad word, in characters.")
    max_n: int = Field(1024, ge=1, description="Most outputs of a request.")
    max_completion_prompts: int = Field(1024, ge=1, description="Most prompts of one /v1/completions request.")
    tool_call_parser: str = Field(
        "auto", description="How the model writes tool calls. auto: as its chat template says; none: tool calls stay text."
    )
    reasoning_parser: str = Field(
        "auto", description="How the model marks its reasoning. auto: as its chat template says; none: reasoning stays text."
    )
    profile_dir: str = Field(
        "",
        description="Directory that /stop_profile writes the frontend's trace to. Empty: profiles in Tetrad's cache directory.",
    )
    responses_store: str = Field(
        "",
        description="Where /v1/responses keeps responses: a file of this frontend alone, `:memory:` (until it ends) or `none`. "
        "Empty: responses.sqlite3 in Tetrad's cache directory.",
    )
    responses_store_max_count: int = Field(10_000, ge=1, description="Most responses kept; the oldest go first.")
    responses_store_max_bytes: int = Field(
        1 << 30, ge=64 << 10, description="Most bytes that kept responses and their inputs have; the oldest go first."
    )
    responses_store_max_age_s: float = Field(30 * 86_400.0, gt=0, description="Seconds a response is kept.")
    metrics_prefix: str = Field("tetrad", description="Prefix of metric names; `vllm` serves existing dashboards.")
    use_generation_config: bool = Field(True, description="Take sampling defaults from the model's generation config.")

    @field_validator("tokenizer_targets", "engine_targets", "engine_admin_targets")
    @classmethod
    def _check_targets(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for target in value:
            try:
                check_target(target)
            except InvalidRequest as error:
                raise ValueError(error.message) from None
        return value

    @field_validator("tool_call_parser")
    @classmethod
    def _check_tool_parser(cls, value: str) -> str:
        return _checked(TOOL_FORMATS, value)

    @field_validator("reasoning_parser")
    @classmethod
    def _check_reasoning_parser(cls, value: str) -> str:
        return _checked(REASONING_FORMATS, value)

    @field_validator("gateway_apis")
    @classmethod
    def _check_gateway_apis(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if value != ("auto",) and (unknown := set(value) - set(GATEWAY_APIS)):
            raise ValueError(f"there is no API {min(unknown)!r}; there are auto, {', '.join(GATEWAY_APIS)}")
        return value

    @model_validator(mode="after")
    def _check_public_tls(self) -> Self:
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise ValueError("ssl-certfile and ssl-keyfile go together")
        if self.ssl_ca_certs is not None and self.public_tls is None:
            raise ValueError("ssl-ca-certs needs ssl-certfile: who asks for certificates must have one")
        return self

    @model_validator(mode="after")
    def _check_origins(self) -> Self:
        if self.allow_credentials and "*" in self.allowed_origins:
            raise ValueError("allow-credentials needs allowed-origins that are named: any page could act for its visitors")
        return self

    @property
    def public_tls(self) -> TlsFiles | None:
        """Identity of the public ports; None: they are plain."""
        if self.ssl_certfile is not None:
            return TlsFiles(self.ssl_certfile, self.ssl_keyfile, self.ssl_ca_certs)
        return None if self.tls_cert_file is None else TlsFiles(self.tls_cert_file, self.tls_key_file, self.ssl_ca_certs)

    @property
    def grpc_address(self) -> str | None:
        """Where the public gRPC API listens; None: nowhere."""
        if self.listen:
            return self.listen
        return None if self.grpc_port is None else f"{self.host}:{self.grpc_port}"


def _checked(formats: Sequence[Format], name: str) -> str:
    try:
        choose_format(formats, name, "")
    except InvalidRequest as error:
        raise ValueError(error.message) from None
    return name
