"""Also: `--also` of `tetrad serve`: further models behind the same address, as EngineArgs and settings of a stack.

Called by `tetrad serve`. A further model has the machine's options in common with the first one, and defaults for all others,
unless its own options say otherwise.
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
from tetrad.stack.local_stack import StackSettings

_SHARED = ("device", "threads", "log_level", "hf_token", "download_dir", "otlp_traces_endpoint")
"""Options of the first model that a further one has, too, unless it says otherwise."""
_OF_ALL = ("max_logprobs", "stream_interval", "enable_prompt_embeds", "served_model_name", *PROGRAMS_ALONE)
"""Options that are of the server as a whole, or have another name here."""
_HELP = (
    "Further model at the same address; requests choose it by its name. NAME=MODEL, or a JSON object with name, model and "
    'engine options, such as {"name": "embed", "model": "./bge", "max_model_len": 512}. May be repeated; in a --config file '
    "it is a list. Each model has an engine core, workers and tokenizers of its own; they share the cores and the memory of "
    "the machine."
)


def add_also_option(parser: argparse.ArgumentParser) -> None:
    """Add `--also`."""
    parser.add_argument("--also", action=_Repeated, default=None, metavar="NAME=MODEL", help=_HELP.replace("%", "%%"))


class _Repeated(argparse.Action):
    """Takes a value a flag. The first flag replaces what a config file gave."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        """Add a value."""
        del option
        before = getattr(namespace, self.dest)
        kept = () if before is None or before is parser.get_default(self.dest) else before
        setattr(namespace, self.dest, (*kept, str(values)))


def also_settings(given: Sequence[str], first: EngineArgs, *, report: Report | None = None) -> tuple[StackSettings, ...]:
    """Return the settings of the further models. Finds their files, fetching them if need be; this blocks.

    Args:
        given: the values of `--also`.
        first: arguments of the first model.
        report: as in EngineArgs.stack_settings.

    Raises:
        InvalidRequest: a value is wrong.
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
        found.append(args.stack_settings(report=report, **frontend))
    return tuple(found)


def _options_of(text: str) -> dict[str, Any]:
    if not text.lstrip().startswith("{"):
        name, _, model = text.partition("=")
        options: dict[str, Any] = {"name": name.strip(), "model": model.strip()}
    else:
        try:
            options = {str(key).replace("-", "_"): value for key, value in json.loads(text).items()}
        except ValueError as error:
            raise _wrong(f"{text[:80]!r} is not JSON: {error}") from None
    for key in ("name", "model"):
        if not isinstance(options.get(key), str) or not options[key]:
            raise _wrong(f"{text[:80]!r} is neither NAME=MODEL nor a JSON object with name and model")
    return options


def _frontend_fields(options: dict[str, Any]) -> dict[str, Any]:
    """Take the options that are settings of the frontend out of the others."""
    fields: dict[str, Any] = {}
    if "lora_modules" in options:
        given = options.pop("lora_modules")
        fields["lora_modules"] = (given,) if isinstance(given, str) else given
    if "lora_resolver_dir" in options:
        fields["lora_resolver_dir"] = options.pop("lora_resolver_dir")
    return fields


def _wrong(text: str) -> InvalidRequest:
    return InvalidRequest(f"--also: {text}.", field="also")
