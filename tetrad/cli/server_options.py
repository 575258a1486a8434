"""ServerOptions: the flags of `tetrad serve` for frontend settings: access, limits, storage.

Absent flags are not passed on, so that TETRAD_FRONTEND_* variables apply; keys are safer in variables than in a command line,
which other users of a machine can read.
"""

import argparse
import typing
from pathlib import Path
from typing import Any

from tetrad.frontend.config import FrontendSettings
from tetrad.library.engine_settings import build_settings
from tetrad.services.errors import InvalidRequest
from tetrad.services.settings import EmptyKey, checked_keys, split_names

_ADDRESS = ("host", "port", "uds", "grpc_port")
_FIELDS = (
    *_ADDRESS,
    "api_key",
    "api_key_file",
    "operator_api_key",
    "operator_endpoints",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_ca_certs",
    "allowed_origins",
    "allowed_methods",
    "allowed_headers",
    "allow_credentials",
    "console",
    "traces_url",
    "default_chat_template_kwargs",
    "lora_modules",
    "lora_resolver_dir",
    "allow_runtime_lora_updating",
    "max_body_bytes",
    "max_header_bytes",
    "max_media_bytes",
    "allowed_media_networks",
    "max_media_redirects",
    "media_fetch_timeout_s",
    "max_media_fetches",
    "max_n",
    "max_stop_strings",
    "request_timeout_s",
    "min_remote_prefill_tokens",
    "remote_prefill_timeout_s",
    "header_timeout_s",
    "body_timeout_s",
    "slow_client_timeout_s",
    "sse_keep_alive_s",
    "max_connections",
    "max_num_requests",
    "max_num_queued_tokens",
    "responses_store",
    "responses_store_max_count",
    "responses_store_max_bytes",
    "responses_store_max_age_s",
)


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each of these settings, with the help and default of the setting."""
    group = parser.add_argument_group("server")
    for name in _FIELDS:
        field = FrontendSettings.model_fields[name]
        default = "" if field.default in (None, (), False, "") else f" (default: {_shown(field.default)})"
        text = f"{field.description}{default}".replace("%", "%%")
        group.add_argument(f"--{name.replace('_', '-')}", default=None, help=text, **_kind(name, field.annotation))
    text = "As in vLLM: let the model choose whether it calls tools. It always may if its calls have a format; this only"
    text += " checks that --tool-call-parser is not none."
    group.add_argument("--enable-auto-tool-choice", default=None, help=text, action=argparse.BooleanOptionalAction)


def server_fields(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that the options set."""
    return {name: value for name in _FIELDS if (value := getattr(options, name)) is not None}


def check_auto_tool_choice(options: argparse.Namespace, frontend: FrontendSettings) -> None:
    """Raise InvalidRequest if the options want from `tool_choice: auto` what this frontend does not do."""
    if options.enable_auto_tool_choice and frontend.tool_call_parser == "none":
        text = "--enable-auto-tool-choice needs a format of tool calls, and --tool-call-parser is none: leave one of them out."
        raise InvalidRequest(text, field="enable_auto_tool_choice")
    if options.enable_auto_tool_choice is False:
        text = "--no-enable-auto-tool-choice is not supported: requests may always choose auto. Leave it out."
        raise InvalidRequest(text, field="enable_auto_tool_choice")


def address_of(options: argparse.Namespace) -> tuple[str, int | None, Path | None]:
    """Return host, port and Unix socket of the HTTP server: each is that of its flag, else of its variable, else the default.

    With a socket, HTTP uses neither host nor port, and the port is None. InvalidRequest if both a socket and a port are given.
    """
    given = server_fields(options)
    address = build_settings(FrontendSettings, {name: given[name] for name in _ADDRESS if name in given})
    if address.uds is not None and "port" in given:
        text = f"--uds {address.uds} and --port {address.port} exclude each other: HTTP listens on one of them. Leave one out."
        raise InvalidRequest(text, field="uds")
    return address.host, address.port if address.uds is None else None, address.uds


def _kind(name: str, annotation: Any) -> dict[str, Any]:
    if name == "default_chat_template_kwargs":
        return {"metavar": "JSON"}
    kinds = typing.get_args(annotation) or (annotation,)
    if name == "lora_modules":
        return {"action": _Names, "nargs": "+", "metavar": "NAME=PATH"}
    if typing.get_origin(annotation) is tuple:
        return {"action": _Keys, "metavar": "KEY"} if "key" in name else {"action": _Names, "metavar": "NAME"}
    if typing.get_origin(annotation) is typing.Literal:
        return {"choices": kinds}
    if bool in kinds:
        return {"action": argparse.BooleanOptionalAction}
    if int in kinds:
        return {"type": int, "metavar": "N"}
    return {"type": float, "metavar": "X"} if float in kinds else {"metavar": _metavar(name)}


def _metavar(name: str) -> str:
    return "ADDRESS" if name == "host" else "URL" if name.endswith("_url") else "PATH"


class _Names(argparse.Action):
    """Accepts names separated by commas, as a JSON list, or one per flag."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        """Append the names of a flag to those of earlier flags."""
        del option
        texts = values if isinstance(values, list) else [values]
        try:
            names = [name for text in texts for name in self._split(str(text))]
        except EmptyKey as error:
            raise argparse.ArgumentError(self, str(error)) from error
        except ValueError as error:  # without its text, which may be a key
            raise argparse.ArgumentError(self, "begins with [ and is not a JSON list") from error
        before = getattr(namespace, self.dest, None)
        # The values of a config file are defaults: the first flag replaces them.
        kept = () if before is None or before is parser.get_default(self.dest) else before
        setattr(namespace, self.dest, (*kept, *names))

    def _split(self, text: str) -> tuple[str, ...]:
        return split_names(text)


class _Keys(_Names):
    """Accepts names that are keys: none may be empty."""

    def _split(self, text: str) -> tuple[str, ...]:
        return split_names(str(checked_keys(text)))


def _shown(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)
