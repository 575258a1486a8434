"""Options: converts EngineArgs to command-line flags, with the help texts of the settings that they set."""

import argparse
import dataclasses
import json
import types
import typing
from typing import Any, Literal

from tetrad.library.engine_args import EngineArgs
from tetrad.library.engine_settings import SETTING_OF
from tetrad.services.command_line import CommandLineParser
from tetrad.services.errors import InvalidRequest
from tetrad.services.settings import ServiceSettings
from tetrad.services.verdicts import verdicts_of

PROGRAMS_ALONE = ("allow_functions", "disable_log_stats", "max_num_queued_reqs", "max_num_queued_tokens")
"""Engine arguments without a flag: a server runs no functions of programs, and has other flags for its queue limits."""

_HELP = {
    "tokenizer": "Model whose tokenizer to use, in the forms of MODEL. Unset: the model's own tokenizer.",
    "revision": "Branch, tag or commit of a Hugging Face id. Unset: the main branch.",
    "tokenizer_revision": "Branch, tag or commit of the tokenizer's Hugging Face id. Unset: the value of --revision.",
    "hf_token": "Token of a Hugging Face account; HF_TOKEN is safer, as other users of a machine see a command line. Unset: "
    "HF_TOKEN, or the token of a login.",
    "download_dir": "Directory for the files of Hugging Face ids. Unset: the Hugging Face client's cache (HF_HUB_CACHE).",
    "override_generation_config": "JSON object of sampling defaults that replace the model's: temperature, top_p, top_k, "
    "min_p, repetition_penalty. Unset: none.",
    "served_model_name": "Names by which clients may call the model. Unset: MODEL.",
    "generation_config": "Sampling defaults. auto: those of the model's generation_config.json. vllm: neutral values.",
    "tensor_parallel_size": "Number of workers of an engine core; each has a part of every layer and of the KV cache. The "
    "model's heads and MLPs must be divisible by it.",
    "pipeline_parallel_size": "Number of stages that run one after another; each has some of the layers, on "
    "tensor-parallel-size workers. At most the number of the model's layers.",
    "data_parallel_size": "Number of engine cores, each with a worker that holds all weights. Requests go to them by "
    "load and known prefixes; the cores of the machine are divided among the workers.",
    "num_prefill_engines": "Number of further engine cores, each with a worker, that compute prompts. Those of "
    "data-parallel-size read the KV blocks from them and generate (docs/disaggregation.md). 0: the same engine core does both.",
    "tokenizer_pool_size": "Number of tokenizer services; if one fails, another serves its requests. Unset: 2 for a server, "
    "1 for a program that uses the library.",
    "otlp_traces_endpoint": "OpenTelemetry collector that receives the spans of all services: http://host:4317. Unset: none.",
    "hf_overrides": "JSON object whose values replace those of the model's config.json. Unset: none.",
    "default_mm_loras": 'JSON object of LoRA adapters for requests that name none, by the media of their prompts: {"audio": '
    "PATH}. Each is named like its modality. Unset: none.",
    "limit_mm_per_prompt": 'Maximum number of items in a prompt, a JSON object such as {"image": 4, "audio": 1}. Unset: 999, '
    "or the model's own limit.",
    "media_io_kwargs": 'JSON object that says how media files are read: {"video": {"num_frames": 16, "fps": 1}}, the most '
    "frames of a video, and for each second. Requests may set others. Unset: at most 32.",
    "language_model_only": "Refuse images, audio and videos in prompts, and do not load the model that reads them.",
    "mm_processor_kwargs": 'JSON object of settings of the model\'s image processor, such as {"max_pixels": 200704}; they '
    "replace those of the model's files, and requests may set others. Unset: none.",
    "mm_processor_cache_gb": "Preprocessed images that each tokenizer service keeps, in GiB. Unset: 0.25.",
    "speculative_config": "JSON object with vLLM's options of speculative decoding: method (ngram, suffix, draft_model, "
    "eagle3 or mtp), num_speculative_tokens, prompt_lookup_min, prompt_lookup_max and others (docs/speculation.md). "
    "Unset: none.",
    "pooler_config": "JSON object with fields of vLLM's PoolerConfig; they override the model's files. Unset: none.",
    "logits_processors": "Classes that change logits before tokens are chosen. The workers import them from this directory or "
    "from installed packages, and run them with this user's rights. Unset: none.",
    "log_level": "Minimum severity of the services' logged events.",
}


_NO_FLAG = ("model", *PROGRAMS_ALONE)
"""Engine arguments without a generated flag; `model` is added separately."""


_NAMED_MODEL = "named_model"
_NAMES = {"served_model_name": "NAME", "logits_processors": "MODULE:CLASS", "allowed_media_domains": "HOST"}
"""Arguments with several names -> the metavar of a name."""
_VALUE_OR_SWITCH = ("hf_token",)
"""Arguments that are a text, True (the flag without a value) or False (the flag with no- in front)."""
_NO_TOKEN = "Send no token, also if there is one."
_JSON = (
    "hf_overrides",
    "speculative_config",
    "pooler_config",
    "override_generation_config",
    "default_mm_loras",
    "limit_mm_per_prompt",
    "mm_processor_kwargs",
    "media_io_kwargs",
)


class HelpFormatter(argparse.HelpFormatter):
    """Shows the default after each help text, unless it is "unset"."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        shown = action.default not in (None, argparse.SUPPRESS, "") and action.option_strings
        return f"{action.help} (default: %(default)s)" if shown else action.help


def new_parser(command: str, description: str, *, usage: str | None = None) -> CommandLineParser:
    """Return a parser for `tetrad COMMAND`.

    Args:
        command: name of the command.
        description: text above the options.
        usage: usage of the arguments, such as "[OPTIONS] [MODEL]". None: a list of all options.
    """
    return CommandLineParser(
        prog=f"tetrad {command}",
        usage=usage and f"tetrad {command} {usage}",
        description=description,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )


def add_engine_options(parser: argparse.ArgumentParser, *, model_flag: bool = False) -> None:
    """Add MODEL, or only `--model` if `model_flag` is set, and one flag per engine argument."""
    kinds = "Model: a built-in name, a directory, a .gguf file or a Hugging Face id (org/name, org/name:Q8_0 for a GGUF file)"
    if model_flag:
        parser.add_argument("--model", default=EngineArgs.model, metavar="MODEL", help=f"{kinds}.")
    else:
        text = f"{kinds} (default: {EngineArgs.model})"
        parser.add_argument("model", nargs="?", default=None, metavar="MODEL", help=text)
        parser.add_argument("--model", dest=_NAMED_MODEL, default=None, metavar="MODEL", help="MODEL, given as a flag.")
    group = parser.add_argument_group("engine")
    for field in dataclasses.fields(EngineArgs):
        if field.name in _NO_FLAG or field.name in verdicts_of(EngineArgs):
            continue
        if field.name in _VALUE_OR_SWITCH:
            # The flag with a value is added last: it is the one that a config file sets.
            flag = f"--no-{field.name.replace('_', '-')}"
            group.add_argument(flag, dest=field.name, action="store_const", const=False, default=field.default, help=_NO_TOKEN)
        group.add_argument(
            f"--{field.name.replace('_', '-')}",
            default=field.default,
            help=_help(field.name).replace("%", "%%"),
            **_kind(field.name, field.type),
        )


def engine_args(options: argparse.Namespace) -> EngineArgs:
    """Return the EngineArgs from the options of `add_engine_options`; InvalidRequest if they name two models."""
    names = {field.name for field in dataclasses.fields(EngineArgs)}
    values = {name: value for name, value in vars(options).items() if name in names}
    args = EngineArgs(**values | {"model": _model_of(options)})
    args.given = getattr(options, "given", frozenset())
    return args


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
    # For an unset argument the service's default applies, so this is the default to show.
    unset = EngineArgs.__dataclass_fields__[name].default is None and field.default not in (None, "", ())
    return f"{field.description}{f' (default: {field.default})' if unset else ''}"


def _kind(name: str, annotation: Any) -> dict[str, Any]:
    kinds = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    if name in _VALUE_OR_SWITCH:
        return {"nargs": "?", "const": True, "metavar": "TEXT"}
    if bool in kinds:
        return {"action": argparse.BooleanOptionalAction}
    if name in _NAMES:
        return {"nargs": "+", "metavar": _NAMES[name]}
    if name in _JSON:
        return {"type": _json_object, "metavar": "JSON"}
    choices = _choices(name)
    if choices:
        return {"choices": choices}
    if int in kinds:
        return {"type": _int_or_text if str in kinds else int, "metavar": "N"}
    return {"type": float, "metavar": "X"} if float in kinds else {"metavar": "TEXT"}


def _choices(name: str) -> tuple[str, ...]:
    owner, setting = SETTING_OF.get(name, (ServiceSettings, name))
    if setting not in owner.model_fields:
        return ()
    annotation = owner.model_fields[setting].annotation
    return typing.get_args(annotation) if typing.get_origin(annotation) is Literal else ()


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return value


def _int_or_text(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text
