"""Options: EngineArgs and server addresses as command-line flags, with help from the settings they become."""

import argparse
import dataclasses
import json
import types
import typing
from typing import Any, Literal

from tetrad.engine_args import SETTING_OF, EngineArgs
from tetrad.services.command_line import CommandLineParser
from tetrad.services.errors import InvalidRequest
from tetrad.services.verdicts import verdicts_of

PROGRAMS_ALONE = ("disable_log_stats", "max_num_queued_reqs", "max_num_queued_tokens")
"""Engine arguments without a flag: a server has flags of its own for what may wait."""

_HELP = {
    "tokenizer": "Where the tokenizer is, if not with the model.",
    "revision": "Branch, tag or commit of a Hugging Face id.",
    "tokenizer_revision": "The tokenizer's, if it differs.",
    "served_model_name": "What clients call the model. Unset: as MODEL says.",
    "generation_config": "auto: sampling defaults of the model's authors; vllm: none.",
    "tokenizer_pool_size": "Tokenizer services to run, each of which can answer for another. Unset: 2; 1 in programs.",
    "otlp_traces_endpoint": "OpenTelemetry collector for the spans of all services, as http://host:4317. Unset: none are made.",
    "hf_overrides": "JSON object of values in place of those of the model's config. Unset: none.",
    "log_level": "Least severe level that the services log: debug, info, warning or error.",
}


_NO_FLAG = ("model", *PROGRAMS_ALONE)
"""`model` is added by itself."""


_NAMED_MODEL = "named_model"


class HelpFormatter(argparse.HelpFormatter):
    """Shows the default behind each help text, unless it is "unset"."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        shown = action.default not in (None, argparse.SUPPRESS, "") and action.option_strings
        return f"{action.help} (default: %(default)s)" if shown else action.help


def new_parser(command: str, description: str) -> CommandLineParser:
    """Return a parser for `tetrad COMMAND`."""
    return CommandLineParser(
        prog=f"tetrad {command}", description=description, formatter_class=HelpFormatter, allow_abbrev=False
    )


def add_engine_options(parser: argparse.ArgumentParser, *, model_flag: bool = False) -> None:
    """Add MODEL, or `--model` where `model_flag` says so, and one flag per engine argument."""
    kinds = "Built-in name, directory, .gguf file or Hugging Face id"
    if model_flag:
        parser.add_argument("--model", default=EngineArgs.model, metavar="MODEL", help=f"{kinds}.")
    else:
        text = f"{kinds} (default: {EngineArgs.model})"
        parser.add_argument("model", nargs="?", default=None, metavar="MODEL", help=text)
        parser.add_argument("--model", dest=_NAMED_MODEL, default=None, metavar="MODEL", help="The same, as a flag.")
    group = parser.add_argument_group("engine")
    for field in dataclasses.fields(EngineArgs):
        if field.name in _NO_FLAG or field.name in verdicts_of(EngineArgs):
            continue
        group.add_argument(
            f"--{field.name.replace('_', '-')}",
            default=field.default,
            help=_help(field.name).replace("%", "%%"),
            **_kind(field.name, field.type),
        )


def engine_args(options: argparse.Namespace) -> EngineArgs:
    """Return the EngineArgs that a parser with `add_engine_options` read; InvalidRequest if it names two models."""
    names = {field.name for field in dataclasses.fields(EngineArgs)}
    given = {name: value for name, value in vars(options).items() if name in names}
    return EngineArgs(**given | {"model": _model_of(options)})


def _model_of(options: argparse.Namespace) -> str:
    models = {each for each in (options.model, getattr(options, _NAMED_MODEL, None)) if each is not None}
    if len(models) > 1:
        raise InvalidRequest(f"Two models are given: {' and '.join(sorted(models))}. Give one.", field="model")
    return models.pop() if models else EngineArgs.model


def _help(name: str) -> str:
    if name in _HELP:
        return _HELP[name]
    owner, setting = SETTING_OF[name]
    field = owner.model_fields[setting]
    # An argument that is unset leaves the choice to the service, whose default is then the one to show.
    unset = EngineArgs.__dataclass_fields__[name].default is None and field.default not in (None, "")
    return f"{field.description}{f' (default: {field.default})' if unset else ''}"


def _kind(name: str, annotation: Any) -> dict[str, Any]:
    kinds = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    if bool in kinds:
        return {"action": argparse.BooleanOptionalAction}
    if name == "served_model_name":
        return {"nargs": "+", "metavar": "NAME"}
    if name == "hf_overrides":
        return {"type": _json_object, "metavar": "JSON"}
    choices = _choices(name)
    if choices:
        return {"choices": choices}
    if int in kinds:
        return {"type": _int_or_text if str in kinds else int, "metavar": "N"}
    return {"type": float, "metavar": "X"} if float in kinds else {"metavar": "TEXT"}


def _choices(name: str) -> tuple[str, ...]:
    if name not in SETTING_OF:
        return ()
    owner, setting = SETTING_OF[name]
    annotation = owner.model_fields[setting].annotation
    return typing.get_args(annotation) if typing.get_origin(annotation) is Literal else ()


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return value


def _int_or_text(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text
