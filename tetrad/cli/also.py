"""Also: converts `--also` of `tetrad serve`, further models at the same address, to settings of a stack.

Called by `tetrad serve`. A further model has the first model's values for options of the machine, and defaults for all others,
unless its own options set them.
"""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from tetrad.cli.options import PROGRAMS_ALONE
from tetrad.library.engine_args import EngineArgs
from tetrad.services.errors import InvalidRequest
from tetrad.services.hub.download import Report
from tetrad.stack.stack_settings import StackSettings

_SHARED = ("device", "threads", "log_level", "hf_token", "download_dir", "otlp_traces_endpoint", "language_model_only")
"""Options whose values further models inherit from the first one, unless they set them."""
_OF_IMAGES = (
    "limit_mm_per_prompt",
    "language_model_only",
    "allowed_local_media_path",
    "allowed_media_domains",
    "enable_mm_embeds",
)
_OF_ALL = (
    "max_logprobs",
    "stream_interval",
    "enable_prompt_embeds",
    "served_model_name",
    *_OF_IMAGES,
    *PROGRAMS_ALONE,
)
"""Options of the whole server, and options with another name in `--also`."""
_HELP = (
    "Further model at the same address; requests choose it by its name. NAME=MODEL, or a JSON object with name, model and "
    'engine options, such as {"name": "embed", "model": "./bge", "max_model_len": 512}. May be repeated; in a --config file '
    "it is a list. Each model has an engine core, workers and tokenizers of its own; they share the cores and the memory of "
    "the machine."
)


def add_also_option(parser: argparse.ArgumentParser) -> None:
    """Add the option `--also`."""
    parser.add_argument("--also", action=_Repeated, default=None, metavar="NAME=MODEL", help=_HELP.replace("%", "%%"))


class _Repeated(argparse.Action):
    """Collects one value per flag. The first flag replaces the values of a config file."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        """Append a value."""
        del option
        before = getattr(namespace, self.dest)
        kept = () if before is None or before is parser.get_default(self.dest) else before
        setattr(namespace, self.dest, (*kept, str(values)))


def also_settings(given: Sequence[str], first: EngineArgs, *, report: Report | None = None) -> tuple[StackSettings, ...]:
    """Return the settings of the further models. Finds their files, and downloads them if necessary; this blocks.

    Args:
        given: the values of `--also`.
        first: the arguments of the first model.
        report: see EngineArgs.stack_settings.

    Raises:
        InvalidRequest: a value is invalid.
        NotFound, Unsupported: see EngineArgs.stack_settings.
    """
    known = {field.name for field in dataclasses.fields(EngineArgs)} - {*_OF_ALL}
    shared = {name: getattr(first, name) for name in _SHARED}
    found = []
    for text in given:
        options = _options_of(text)
        frontend = _frontend_fields(options)
        if unknown := set(options) - known - {"name"}:
            raise _wrong(f"a further model has no option {min(unknown)!r}")
        name = options.pop("name")
        args = EngineArgs(**{**shared, **options, "served_model_name": name})
        args.given = frozenset(options) | (first.given & shared.keys())
        found.append(args.stack_settings(report=report, **frontend))
    return tuple(found)


def _options_of(text: str) -> dict[str, Any]:
    if not text.lstrip().startswith("{"):
        name, _, model = text.partition("=")
        options: dict[str, Any] = {"name": name.strip(), "model": model.strip()}
    else:
        try:
            options = {str(key).replace("-", "_"): value for key, value in json.loads(text).items()}
        except (ValueError, RecursionError) as error:
            raise _wrong(f"{text[:80]!r} is not JSON: {error}") from None
    for key in ("name", "model"):
        if not isinstance(options.get(key), str) or not options[key]:
            raise _wrong(f"{text[:80]!r} is neither NAME=MODEL nor a JSON object with name and model")
    return options


def _frontend_fields(options: dict[str, Any]) -> dict[str, Any]:
    """Remove the options that are frontend settings from `options`, and return them."""
    fields: dict[str, Any] = {}
    if "lora_modules" in options:
        given = options.pop("lora_modules")
        fields["lora_modules"] = (given,) if isinstance(given, str) else given
    for name in ("lora_resolver_dir", "default_chat_template_kwargs"):
        if name in options:
            value = options.pop(name)
            fields[name] = json.dumps(value) if isinstance(value, dict) else value
    return fields


def _wrong(text: str) -> InvalidRequest:
    return InvalidRequest(f"--also: {text}.", field="also")
