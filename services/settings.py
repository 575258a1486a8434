"""Settings: one frozen model per service, from flags, environment and YAML file, in this order of precedence.

A service's `config.py` derives from ServiceSettings; `load_settings` is called once, in its `__main__.py`. Unknown keys are
errors in all three places. Nothing else reads os.environ. A value measured at run time is not a setting.
"""

import difflib
import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Self, TypeVar, Union, get_origin

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    YamlConfigSettingsSource,
)

from tetrad.services.command_line import CommandLineParser, add_setting_argument
from tetrad.services.errors import InvalidRequest
from tetrad.services.message_size import DEFAULT_MAX_MESSAGE_BYTES, LEAST_MAX_MESSAGE_BYTES
from tetrad.services.tls.identity import TlsFiles


class EmptyKey(ValueError):
    """A key is an empty text."""


def _json_value(text: str) -> Any:
    """Return a JSON value; ValueError for another text."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError(f"is not JSON: {error}") from error


def split_names(text: str) -> tuple[str, ...]:
    """Return names that are separated by commas, or written as a JSON list."""
    if text.lstrip().startswith("["):
        return tuple(_json_value(text))
    return tuple(part.strip() for part in text.split(",") if part.strip())


def checked_keys(value: object) -> object:
    """Return a setting of keys unchanged; ValueError if one of the keys is empty."""
    keys = value
    if isinstance(value, str):
        keys = _json_value(value) if value.lstrip().startswith("[") else value.split(",")
    if isinstance(keys, list | tuple) and not all(str(key).strip() for key in keys):
        raise EmptyKey("a key must not be empty")
    return value


Names = Annotated[
    tuple[str, ...], NoDecode, BeforeValidator(lambda value: split_names(value) if isinstance(value, str) else value)
]
"""Names in one setting, separated by commas or as a JSON list."""
Keys = Annotated[Names, BeforeValidator(checked_keys)]
"""Keys in the form of Names. An empty one is refused: a key from an unset variable must not turn the check of keys off."""


def checked_json_object(text: str) -> str:
    """Return a text that is a JSON object or empty; ValueError for another one."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"must be a JSON object, got {text[:80]}")  # noqa: TRY004 - pydantic takes no TypeError
    return text


JsonObject = Annotated[str, AfterValidator(checked_json_object)]
OptionalPath = Annotated[Path | None, BeforeValidator(lambda value: value or None)]
"""A file or directory. An empty text counts as unset: Docker Compose passes an unset variable so."""


_MOST_OF_GRPC = 2**31 - 1
"""The largest number that an option of gRPC can hold."""
_OTLP_ENDPOINT = re.compile(r"(https?|grpc)://[^\s/@]+:\d{1,5}/?|[^\s/@]+:\d{1,5}|unix:/\S+")


class Settings(BaseSettings):
    """Base of every settings model. Each service sets its `env_prefix` (TETRAD_<SERVICE>_)."""

    # Errors do not contain inputs: these may be keys, or a whole file with keys in it.
    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        protected_namespaces=(),
        hide_input_in_errors=True,
        allow_inf_nan=False,  # timers of the system take no infinite time
    )

    # Set during a call of load_settings only, since BaseSettings takes its sources from a class method.
    _config_file: ClassVar[Path | None] = None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the library's signature
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - likewise
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources: arguments and flags, then the environment, then the file."""
        sources: tuple[PydanticBaseSettingsSource, ...] = (init_settings,)
        prefix = _prefix_of(settings_cls)
        has_other_names = any(field.validation_alias is not None for field in settings_cls.model_fields.values())
        # The source tries each setting, which takes 1 ms.
        if has_other_names or any(name.upper().startswith(prefix) for name in os.environ):
            sources += (env_settings,)
        if cls._config_file is not None:
            sources += (YamlConfigSettingsSource(settings_cls, yaml_file=cls._config_file),)
        return sources


class TlsSettings(Settings):
    """The TLS identity of a process and its trusted authorities on TCP, as a gRPC server and as a client.

    Unix sockets are protected by the file system and use no TLS.
    """

    tls_cert_file: OptionalPath = Field(
        None,
        description="Certificate chain of this service (PEM file); reloaded when it changes. The gRPC ports then use TLS. "
        "Unset: no TLS.",
    )
    tls_key_file: OptionalPath = Field(None, description="Private key of tls-cert-file (PEM file, no password).")
    tls_ca_file: OptionalPath = Field(
        None,
        description="Trusted certificate authorities (PEM file). Callers of this service, and the services that it calls, "
        "must present a certificate issued by one of them. Unset: callers need no certificate, and called "
        "services need one that the system trusts.",
    )

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls-cert-file and tls-key-file go together")
        return self

    @property
    def tls(self) -> TlsFiles | None:
        """The files of the identity; None: connections use no TLS."""
        files = TlsFiles(self.tls_cert_file, self.tls_key_file, self.tls_ca_file)
        return None if files == TlsFiles() else files


class ServiceSettings(TlsSettings):
    """The settings that all services have."""

    listen: str = Field(
        "127.0.0.1:0", description="Address of the gRPC server: host:port or unix:/path. Port 0: any free port."
    )
    metrics_port: int | None = Field(None, ge=0, le=65535, description="Port of the Prometheus endpoint. Unset: no endpoint.")
    metrics_host: str = Field("127.0.0.1", description="Address of the Prometheus endpoint, which needs no API key.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Minimum severity of logged events.")
    log_json: bool | None = Field(None, description="Log as JSON lines. Unset: JSON unless stderr is a terminal.")
    max_message_bytes: int = Field(
        DEFAULT_MAX_MESSAGE_BYTES,
        ge=LEAST_MAX_MESSAGE_BYTES,
        le=_MOST_OF_GRPC,
        description="Maximum size of a gRPC message, in bytes.",
    )
    max_metadata_bytes: int = Field(
        16 << 10, ge=1024, le=_MOST_OF_GRPC, description="Maximum size of the metadata (headers) of a gRPC call, in bytes."
    )
    max_concurrent_streams: int = Field(
        4096, ge=1, le=_MOST_OF_GRPC, description="Maximum number of open gRPC calls per connection."
    )
    reflection: bool = Field(
        True, description="Enable gRPC server reflection (grpc.reflection), which lists methods and messages to callers."
    )
    withdrawal_wait_s: float = Field(
        0.0,
        ge=0,
        description="Seconds between reporting NOT_SERVING and refusing requests at shutdown, so that load balancers notice.",
    )
    drain_timeout_s: float = Field(30.0, ge=0, description="Seconds that running requests may take to finish after SIGTERM.")
    loop_stall_timeout_s: float = Field(
        60.0, ge=0, description="Seconds that the event loop may be blocked before the process ends itself. 0: no limit."
    )
    trace_path: OptionalPath = Field(
        None,
        description="File for a trace of the last calls (Chrome trace format), written when the service ends. Unset: no trace.",
    )
    otlp_endpoint: str | None = Field(
        None,
        description="OpenTelemetry collector that receives the spans of requests (OTLP over gRPC): http://host:port or "
        "host:port (no TLS), https://host:port or unix:/path. Unset: no spans.",
    )
    lifeline_fd: int | None = Field(
        None, description="File descriptor of a pipe from the parent process; the service exits when the pipe closes."
    )

    @field_validator("otlp_endpoint")
    @classmethod
    def _check_otlp_endpoint(cls, value: str | None) -> str | None:
        if not value:  # Docker Compose passes an unset variable as an empty one
            return None
        if not _OTLP_ENDPOINT.fullmatch(value):
            raise ValueError("must be http://host:port, https://host:port, host:port or unix:/path")
        return value


S = TypeVar("S", bound=Settings)


def load_settings(cls: type[S], argv: Sequence[str], *, prog: str) -> S:
    """Return the settings from flags, environment and `--config FILE`.

    For --help it prints the help and exits with code 0; for a wrong key, one line that names it, and code 2.
    """
    argv, config_file = _take_config_file(list(argv), prog)
    try:
        if prefix := _prefix_of(cls):
            refuse_unknown_variables(prefix, [cls])
        cls._config_file = config_file
        source: CliSettingsSource[Any] = CliSettingsSource(
            cls,
            cli_parse_args=argv,
            add_argument_method=add_setting_argument,
            root_parser=CommandLineParser(prog=prog, usage=f"{prog} [OPTIONS]", description=cls.__doc__, allow_abbrev=False),
            cli_kebab_case=True,
            cli_implicit_flags=True,
            cli_avoid_json=True,
            cli_hide_none_type=True,
        )
        return cls(_cli_settings_source=source)
    except ValidationError as error:
        name, message = first_problem(cls, error)
        _exit_usage(prog, f"{name.replace('_', '-') or 'settings'}: {message}")
    except (SettingsError, InvalidRequest, OSError) as error:
        _exit_usage(prog, str(error))
    finally:
        cls._config_file = None


def first_problem(cls: type[Settings], error: ValidationError) -> tuple[str, str]:
    """Return the name of the first wrong setting ("" for several together), and the problem in one line.

    The line contains the given value, unless the setting is a secret (repr=False).
    """
    first = error.errors()[0]
    loc, message = first["loc"], first["msg"].removeprefix("Value error, ")
    field = cls.model_fields.get(str(loc[0])) if loc else None
    given = f" (got {first['input']!r})" if field is not None and field.repr else ""
    if field is not None and get_origin(field.annotation) in (Union, UnionType) and len(loc) > 1:
        # pydantic reports each alternative, with its type behind the name.
        others = [each["msg"].removeprefix("Input should be ") for each in error.errors()[1:] if each["loc"][0] == loc[0]]
        loc, message = loc[:1], ", or ".join([message, *others])
    return ".".join(str(part) for part in loc), f"{message}{given}"


def replaced(settings: S, **changes: object) -> S:
    """Return validated settings with other values; a copy by `model_copy` would not be validated."""
    return type(settings)(**{**settings.model_dump(), **changes})


def child_environment(settings: Settings) -> dict[str, str]:
    """Return this process's environment for a child: its variables for this model are replaced by the values of `settings`."""
    prefix = _prefix_of(type(settings))
    values = settings.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    own = {f"{prefix}{name}".upper(): value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    return {name: value for name, value in os.environ.items() if not name.upper().startswith(prefix)} | own


def refuse_unknown_variables(prefix: str, models: Iterable[type[Settings]]) -> None:
    """Raise InvalidRequest, with the most similar name, for an unknown variable with this prefix."""
    known = {f"{_prefix_of(model)}{name}".upper() for model in models for name in model.model_fields}
    for name in os.environ:
        if not name.upper().startswith(prefix) or name.upper() in known:
            continue
        meant = "".join(difflib.get_close_matches(name.upper(), known, n=1))
        hint = f"did you mean {meant}?" if meant else "see --help for the list"
        raise InvalidRequest(f"{name}: there is no such setting; {hint}")


def _prefix_of(cls: type[BaseSettings]) -> str:
    return cls.model_config.get("env_prefix", "").upper()


def _take_config_file(argv: list[str], prog: str) -> tuple[list[str], Path | None]:
    """Remove `--config FILE` from the arguments: the file must be known before the other sources are read."""
    for i, arg in enumerate(argv):
        if arg == "--config" and i + 1 < len(argv):
            path, rest = Path(argv[i + 1]), argv[:i] + argv[i + 2 :]
        elif arg.startswith("--config="):
            path, rest = Path(arg.removeprefix("--config=")), argv[:i] + argv[i + 1 :]
        else:
            continue
        if not path.is_file():
            _exit_usage(prog, f"--config: there is no file {path}")
        if problem := _problem_of_config_file(path):
            _exit_usage(prog, f"--config: {path} {problem}")
        return rest, path
    return argv, None


def _problem_of_config_file(path: Path) -> str:
    """Return why a file cannot be a configuration, without its content, which may be secret; empty if it can."""
    import yaml  # takes 20 ms, and most processes have no file

    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    except UnicodeDecodeError as error:
        return f"is not UTF-8 at byte {error.start}"
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        return "is not YAML" if mark is None else f"is not YAML: line {mark.line + 1}"
    if content is None or (isinstance(content, dict) and all(isinstance(key, str) for key in content)):
        return ""
    return "must hold settings, one `name: value` in each line"


def _exit_usage(prog: str, message: str) -> NoReturn:
    sys.stderr.write(f"{prog}: {message}\n")
    raise SystemExit(2)
