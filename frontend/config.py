"""Settings of the frontend: flags, TETRAD_FRONTEND_* and YAML. Operators choose them; facts about models are not settings."""

import re
from typing import Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from tetrad.frontend.further_models import (
    FurtherModel,
    FurtherModels,
    LoraModules,
    MediaLoras,
    ReasoningParser,
    SamplingDefaults,
    Targets,
    TemplateVariables,
    ToolParser,
    check_names_differ,
    media_loras,
    names_of,
)
from tetrad.frontend.media.settings import MediaSettings
from tetrad.services.settings import Names, OptionalPath

GATEWAY_APIS = ("smg", "vllm", "openengine")
_MOST_INTERVAL = 2**31 - 1


class FrontendSettings(MediaSettings):
    """Options of the frontend.

    Each is a flag (--max-n), an environment variable (TETRAD_FRONTEND_MAX_N) or a key of a YAML file
    (max_n, with --config FILE).
    """

    model_config = SettingsConfigDict(env_prefix="TETRAD_FRONTEND_")

    peers_dir: OptionalPath = Field(
        None,
        description="Directory that the frontends of one port on this machine share: max-num-requests and "
        "max-num-queued-tokens hold for all of them together, and /metrics of each has the metrics of all. Unset: this "
        "frontend is alone.",
    )

    gateway_apis: Names = Field(
        ("auto",),
        description="gRPC APIs for other projects' gateways, on the port of the public gRPC API, separated by commas: smg "
        "(vllm.grpc.engine; needs the package smg-grpc-proto), vllm (vllm.Inference, vllm.Control), openengine "
        "(openengine.v1.Inference, openengine.v1.Control). auto: all whose packages are installed. Empty: none.",
    )

    tokenizer_targets: Targets = Field(
        ("127.0.0.1:50051",),
        min_length=1,
        description="Addresses of tokenizers of the same model, separated by commas: host:port, unix:/path, or "
        "dns:///name:port for all addresses of a DNS name. If one fails, another one takes its requests.",
    )
    engine_targets: Targets = Field(
        ("127.0.0.1:50052",),
        min_length=1,
        description="Addresses of engine cores of the same model, in the form of tokenizer-targets. Requests are spread as "
        "prefix-affinity says.",
    )
    engine_admin_targets: Targets = Field(
        ("127.0.0.1:50054",),
        description="Addresses of the engine cores' admin ports, in the order of engine-targets; DNS names where those have "
        "DNS names. Empty: operator endpoints are unavailable, and the contents of prefix caches are estimated.",
    )
    dns_refresh_interval_s: float = Field(
        5.0, gt=0, description="Seconds between DNS lookups of the targets' names. A lost connection triggers a lookup at once."
    )
    prefix_affinity: float = Field(
        16.0,
        ge=0,
        description="How many more requests than the least busy engine core an engine core may have and still receive a "
        "request whose prompt prefix it has cached; at least a quarter of the average number of requests. 0: "
        "every request goes to the least busy engine core.",
    )

    model: str = Field(
        "",
        description="Name of the model that the served names stand for, shown in /v1/models. Empty: as the tokenizer reports "
        "it.",
    )
    served_model_names: Names = Field(
        (), description="Model names that clients may use, separated by commas. Empty: the model's own name."
    )

    further_models: FurtherModels = Field(
        (),
        description="Further models behind the same address, a JSON list: an object for each, with served_model_names, "
        "tokenizer_targets and engine_targets; engine_admin_targets, model, lora_modules, default_mm_loras, lora_resolver_dir, "
        "tool_call_parser, reasoning_parser, use_generation_config, override_generation_config and "
        "default_chat_template_kwargs may follow. A request goes to the model that it names, and to the first one if it names "
        "none. Empty: one model.",
    )

    lora_modules: LoraModules = Field(
        (),
        description="LoRA adapters that clients may name as model, as NAME=PATH, separated by commas or given repeatedly. They "
        "are loaded at start; needs --enable-lora.",
    )
    default_mm_loras: MediaLoras = Field(
        "",
        description='LoRA adapters of requests that name none, by the media of their prompts, a JSON object: {"audio": PATH}. '
        "Each is named like its modality. A prompt with media of two of them has neither. Empty: none.",
    )
    lora_resolver_dir: str = Field(
        "",
        description="Directory of LoRA adapters: each one in it is loaded when a client first sends its directory's name as "
        "model. Empty: none.",
    )
    allow_runtime_lora_updating: bool = Field(
        False, description="Let operators load and unload LoRA adapters over HTTP (/v1/load_lora_adapter)."
    )

    enable_prompt_embeds: bool = Field(
        False,
        description="Accept prompts as embeddings over HTTP (prompt_embeds of /v1/completions, parts of that type in "
        "/v1/chat/completions; safetensors in base64). Enable it only for trusted clients, since they choose the input vector "
        "of each position.",
    )

    console: bool = Field(True, description="Serve the console, a web page, at / of the HTTP server.")
    traces_url: str = Field(
        "",
        description="Web page that shows the traces (Jaeger, Grafana), for a link in the console: http://host:port/path. "
        "Empty: no link.",
    )

    ready_timeout_s: float = Field(
        600.0,
        gt=0,
        description="Seconds that the frontend may take to become ready for the first time before it exits. Until then it is "
        "alive and refuses requests.",
    )
    recovery_timeout_s: float = Field(
        60.0, gt=0, description="Seconds to wait for a lost tokenizer or engine core before its requests fail."
    )
    min_remote_prefill_tokens: int = Field(
        64,
        ge=1,
        description="Smallest number of prompt tokens to compute for which an engine core with kv-role producer is used, if "
        "there is one. Shorter prompts, and those that are mostly in the prefix cache, are computed where tokens are "
        "generated.",
    )
    remote_prefill_timeout_s: float = Field(
        30.0,
        gt=0,
        description="Seconds that an engine core with kv-role producer may take for a prompt, with its wait there; then the "
        "prompt is computed where tokens are generated.",
    )
    tokenizer_stall_s: float = Field(
        5.0,
        gt=0,
        description="Seconds to wait for an answer from a tokenizer before another one is asked, if there is another one. "
        "Long texts and clients' own chat templates stay with the first tokenizer unless its connection is lost.",
    )
    request_timeout_s: float | None = Field(
        None, gt=0, description="Seconds that a request may take before it is aborted. Unset: no limit."
    )
    drain_timeout_s: float = Field(4.0, ge=0, description="Seconds that running requests may take to finish after SIGTERM.")
    retire_timeout_s: float = Field(
        600.0,
        ge=0,
        description="Seconds that running requests may take to finish after SIGUSR1, which says that another frontend has "
        "replaced this one.",
    )
    keep_alive_timeout_s: int = Field(75, ge=1, description="Seconds that an idle HTTP connection is kept open.")

    stream_interval: int = Field(
        1,
        ge=1,
        le=_MOST_INTERVAL,
        description="Number of new tokens in each message of a stream, except its first and last; a request may set its own "
        "number. More than 1 costs less CPU time per token.",
    )
    sse_keep_alive_s: float = Field(
        15.0,
        gt=0,
        description="Seconds without an event after which an event stream (SSE) gets a comment line, so that proxies keep the "
        "connection.",
    )
    slow_client_timeout_s: float = Field(
        60.0, gt=0, description="Seconds after which a client that reads nothing of its response is disconnected."
    )
    header_timeout_s: float = Field(
        10.0, gt=0, description="Seconds that the request line and headers of an HTTP request may take to arrive."
    )
    body_timeout_s: float = Field(
        30.0, gt=0, description="Seconds that each 64 KiB of an HTTP request body, and the rest of it, may take to arrive."
    )
    max_connections: int = Field(
        16384,
        ge=1,
        description="Maximum number of HTTP connections; further ones get status 503. Lower if the limit on open files is "
        "lower.",
    )
    max_num_requests: int = Field(
        8192,
        ge=0,
        description="Maximum number of unfinished requests, where each of n outputs counts; further ones get status 429. 0: "
        "no limit.",
    )
    max_num_queued_tokens: int = Field(
        8 << 20,
        ge=0,
        description="Maximum number of prompt tokens of all requests that wait for their first output token; further requests "
        "get status 429. 0: no limit.",
    )

    max_body_bytes: int = Field(32 << 20, ge=1024, description="Maximum size of an HTTP request body, in bytes.")
    max_total_body_bytes: int = Field(
        512 << 20,
        ge=1024,
        description="Maximum size of all HTTP request bodies being read at the same time, in bytes; further requests get "
        "status 429.",
    )
    max_body_objects: int = Field(
        16384, ge=16, description="Maximum number of JSON objects and arrays in an HTTP request body."
    )
    max_body_values: int = Field(
        1 << 20, ge=16, description="Maximum number of values in the arrays and objects of an HTTP request body."
    )
    max_header_bytes: int = Field(
        64 << 10, ge=1024, description="Maximum size of the request line and headers of an HTTP request, in bytes."
    )
    max_chars_per_token: int = Field(
        128,
        ge=1,
        description="Maximum length of a text, in characters per token of the model's context. Longer texts are refused "
        "before they are tokenized, unless they are truncated.",
    )
    max_logprobs: int = Field(
        20, ge=-1, description="Maximum number of log-probabilities per token that a request may ask for. -1: no limit."
    )
    max_answer_logprobs: int = Field(
        1 << 19,
        ge=0,
        description="Maximum number of log-probabilities in a response, over its outputs and the prompt, if it has more than "
        "128 per token. Requests that exceed it are refused. 0: no limit.",
    )
    max_stop_strings: int = Field(64, ge=0, description="Maximum number of stop strings per request.")
    max_stop_chars: int = Field(1024, ge=1, description="Maximum length of a stop string, in characters.")
    max_bad_words: int = Field(128, ge=0, description="Maximum number of bad words per request.")
    max_bad_word_chars: int = Field(1024, ge=1, description="Maximum length of a bad word, in characters.")
    max_n: int = Field(1024, ge=1, description="Maximum number of outputs (n) per request.")
    max_completion_prompts: int = Field(1024, ge=1, description="Maximum number of prompts in one /v1/completions request.")
    max_pooling_inputs: int = Field(
        2048, ge=1, description="Maximum number of inputs, documents or pairs in one request for embeddings, classes or scores."
    )
    tool_call_parser: ToolParser = Field(
        "auto",
        description="Format in which the model writes tool calls. auto: detected from the chat template. none: tool calls "
        "stay in the text.",
    )
    reasoning_parser: ReasoningParser = Field(
        "auto",
        description="Format in which the model marks its reasoning. auto: detected from the chat template. none: reasoning "
        "stays in the text.",
    )
    profile_dir: str = Field(
        "",
        description="Directory for the frontend's profiles (/stop_profile). Empty: profiles in Tetrad's cache directory.",
    )
    responses_store: str = Field(
        "",
        description="Where /v1/responses stores responses: a file that this frontend alone uses, `:memory:` (lost at its end) "
        "or `none`. Empty: responses.sqlite3 in Tetrad's cache directory.",
    )
    responses_store_max_count: int = Field(
        10_000, ge=1, description="Maximum number of stored responses; the oldest ones are deleted first."
    )
    responses_store_max_bytes: int = Field(
        1 << 30,
        ge=64 << 10,
        description="Maximum size of stored responses and their inputs, in bytes; the oldest ones are deleted first. A larger "
        "response is not stored, or fails if it is generated in the background.",
    )
    responses_store_max_age_s: float = Field(
        30 * 86_400.0, gt=0, description="Seconds after which a stored response is deleted."
    )
    metrics_prefix: str = Field("tetrad", description="Prefix of metric names. `vllm` fits dashboards made for vLLM.")
    use_generation_config: bool = Field(True, description="Use the sampling defaults of the model's generation_config.json.")
    override_generation_config: SamplingDefaults = Field(
        "",
        description="JSON object of sampling defaults that replace those of the model's generation_config.json: temperature, "
        "top_p, top_k, min_p, repetition_penalty. A request's own values win. Empty: none.",
    )
    default_chat_template_kwargs: TemplateVariables = Field(
        "",
        description="JSON object of variables of the chat template for requests that do not set them, such as "
        '{"enable_thinking": false}. Empty: none.',
    )

    @field_validator("gateway_apis")
    @classmethod
    def _check_gateway_apis(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "auto" in value and len(value) > 1:
            raise ValueError("auto stands alone: it means all whose packages are installed")
        if value != ("auto",) and (unknown := set(value) - set(GATEWAY_APIS)):
            raise ValueError(f"there is no API {min(unknown)!r}; there are auto, {', '.join(GATEWAY_APIS)}")
        return value

    @field_validator("metrics_prefix")
    @classmethod
    def _check_metrics_prefix(cls, value: str) -> str:
        if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_:]*", value):
            raise ValueError(f"must be letters, digits and underscores, and no digit first, got {value[:80]!r}")
        return value

    @field_validator("traces_url")
    @classmethod
    def _check_traces_url(cls, value: str) -> str:
        if value and not value.startswith(("http://", "https://")):
            raise ValueError(f"must be a URL that begins with http:// or https://, got {value[:80]!r}")
        return value

    @model_validator(mode="after")
    def _check_console(self) -> Self:
        if self.traces_url and not self.console:
            raise ValueError("traces-url is a link in the console, which is off")
        return self

    @model_validator(mode="after")
    def _check_adapter_names(self) -> Self:
        names = [module.partition("=")[0] for module in self.lora_modules]
        if twice := media_loras(self.default_mm_loras).keys() & {*names, *self.names}:
            raise ValueError(
                f"default-mm-loras names an adapter {min(twice)!r}, which is the name of another one or of the model"
            )
        return self

    @model_validator(mode="after")
    def _check_model_names(self) -> Self:
        if not self.further_models:
            return self
        if not self.names:
            raise ValueError("further-models needs served-model-names: requests name the first model, too")
        first = (self.names, self.lora_modules, self.default_mm_loras)
        others = ((each.served_model_names, each.lora_modules, each.default_mm_loras) for each in self.further_models)
        check_names_differ(names_of(*model) for model in (first, *others))
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the first model that clients may use; empty: the name that the tokenizer reports."""
        return self.served_model_names or ((self.model,) if self.model else ())

    def each_model(self) -> tuple[Self, ...]:
        """Return the settings of every model, the first model first, each as for a frontend that serves only this model."""
        return (self.model_copy(update={"further_models": ()}), *map(self.of_further, self.further_models))

    def of_further(self, model: FurtherModel) -> Self:
        """Return the settings of a further model, as for a frontend that serves only this model."""
        fields = {name: getattr(model, name) for name in type(model).model_fields}
        return self.model_copy(update={"further_models": (), **fields})
