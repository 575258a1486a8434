"""Options of `tetrad bench`: parses them and derives the load from them. The names are those of `vllm bench serve`."""

import argparse
import math
from pathlib import Path
from typing import TypeVar

from tetrad.cli.http_client import base_url
from tetrad.cli.load.datasets import Dataset, RandomPrompts, SharedPrefixes, read_conversations
from tetrad.cli.load.generator import Level
from tetrad.cli.load.media_options import OF_MEDIA, add_media_options, check_media_options, media_dataset
from tetrad.cli.load.summary import LatencyLimits
from tetrad.cli.load.sweep import Plan
from tetrad.cli.options import add_engine_options, new_parser
from tetrad.cli.own_server import START_TIMEOUT_HELP
from tetrad.services.command_line import CommandLineParser
from tetrad.services.errors import InvalidRequest

Number = TypeVar("Number", int, float)

_DEFAULT_CONCURRENCY = 16
_COMPARISON_ROUNDS = 3
_POSITIVE = (
    "num_requests",
    "input_len",
    "output_len",
    "timeout_s",
    "start_timeout_s",
    "burstiness",
    "prefix_len",
    "num_prefixes",
    "audio_seconds",
    "rounds",
    "ttft_ms",
    "tpot_ms",
)

_OF_DATASETS = {
    "prefix_len": ("prefix_repetition", 256),
    "num_prefixes": ("prefix_repetition", 10),
    **{name: ("random-mm", default) for name, default in OF_MEDIA.items()},
}
"""Option -> the only dataset that it changes, and its value if it is unset."""

_FILES = ("json", "html", "trace")
"""Options that name files of results."""


def make_parser() -> CommandLineParser:
    """Return the command's parser."""
    parser = new_parser(
        "bench",
        "Measure latency and throughput of a server with streamed requests, at one or several levels of load.",
        usage="[OPTIONS]",
    )
    _add_servers(parser)
    _add_load(parser)
    _add_dataset(parser)
    _add_results(parser)
    add_engine_options(parser, model_flag=True)
    return parser


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the options; InvalidRequest if a value is out of range or two options exclude each other."""
    options = make_parser().parse_args(arguments)
    for name in _POSITIVE:
        value = getattr(options, name)
        if value is not None and not 0 < value < math.inf:
            text = f"--{name.replace('_', '-')} must be more than 0 and finite, got {value}."
            raise InvalidRequest(text, field=name)
    for url in filter(None, (options.url, options.against)):
        base_url(url)  # refuses a Unix socket: the load needs a host and a port
    if options.trace is not None:
        if options.url is not None or options.against is not None:
            raise InvalidRequest("--trace needs a server of its own; leave --url and --against out.", field="trace")
        if len(levels_of(options)) > 1 or (options.rounds or 1) > 1:
            raise InvalidRequest("--trace takes one level and one round.", field="trace")
    names: dict[Path, str] = {}
    for name in _FILES:
        path = getattr(options, name)
        if path is None:
            continue
        _check_file(name, path)
        if (other := names.setdefault(path.resolve(), name)) != name:
            raise InvalidRequest(f"--{other} and --{name} both name {path}; give two files.", field=name)
    if (options.dataset_path is not None) != (options.dataset_name == "custom"):
        raise InvalidRequest("--dataset-name custom and --dataset-path need each other.", field="dataset_path")
    for name, (dataset, default) in _OF_DATASETS.items():
        if getattr(options, name) is None:
            setattr(options, name, default)
        elif options.dataset_name != dataset:
            raise InvalidRequest(f"--{name.replace('_', '-')} needs --dataset-name {dataset}.", field=name)
    check_media_options(options)
    if options.ignore_eos and options.dataset_name != "custom":
        text = "--ignore-eos needs --dataset-name custom; other outputs have their whole length anyway."
        raise InvalidRequest(text, field="ignore_eos")
    return options


def _check_file(name: str, path: Path) -> None:
    """Raise InvalidRequest if results cannot be written there: they would be lost after the load."""
    if path.is_dir():
        raise InvalidRequest(f"--{name} {path} is a directory; give a file.", field=name)
    if not path.parent.is_dir():
        raise InvalidRequest(f"--{name} {path} cannot be written: there is no directory {path.parent}.", field=name)


def plan_of(options: argparse.Namespace) -> Plan:
    """Return the loads that the options define."""
    return Plan(
        levels=levels_of(options),
        dataset=_dataset(options),
        num_requests=options.num_requests,
        rounds=options.rounds or (1 if options.against is None else _COMPARISON_ROUNDS),
        timeout_s=options.timeout_s,
        seed=options.load_seed,
        limits=LatencyLimits(options.ttft_ms, options.tpot_ms),
    )


def levels_of(options: argparse.Namespace) -> list[Level]:
    """Return the levels: each rate with each concurrency. Without a rate, the requests in flight are always limited."""
    rates = [None if rate == math.inf else rate for rate in options.request_rate]
    return [
        Level(_DEFAULT_CONCURRENCY if limit is None and rate is None else limit, rate, options.burstiness)
        for rate in rates
        for limit in options.concurrency or [None]
    ]


def _dataset(options: argparse.Namespace) -> Dataset:
    if options.dataset_name == "custom":
        return read_conversations(options.dataset_path, options.output_len, ignore_eos=options.ignore_eos)
    if options.dataset_name == "prefix_repetition":
        return SharedPrefixes(options.num_prefixes, options.prefix_len, options.input_len, options.output_len)
    if options.dataset_name == "random-mm":
        return media_dataset(options)
    return RandomPrompts(options.input_len, options.output_len)


def _add_servers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("servers")
    text = "URL of the server to measure. Unset: start one for the measurement."
    group.add_argument("--url", "--base-url", default=None, metavar="URL", help=text)
    text = "URL of a second server with the same model. Both get the same load in turns, and their figures are compared."
    group.add_argument("--against", default=None, metavar="URL", help=text)
    group.add_argument("--api-key", default=None, metavar="KEY", help="API key for the servers at these URLs.")
    text = "Certificate authorities (PEM file) to trust for an https URL. Unset: the system's."
    group.add_argument("--ca-file", type=Path, default=None, metavar="PATH", help=text)
    group.add_argument("--start-timeout-s", type=float, default=None, metavar="X", help=START_TIMEOUT_HELP)


def _add_load(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("load")
    text = (
        "Maximum number of requests in flight; several, separated by commas, are measured one after the other. "
        f"Unset: {_DEFAULT_CONCURRENCY}, or no limit with --request-rate."
    )
    group.add_argument("--concurrency", "--max-concurrency", type=_counts, default=None, metavar="N,...", help=text)
    text = (
        "Mean number of requests that arrive in a second, as a Poisson process; several, separated by commas, are measured one "
        "after the other. inf: each is sent as soon as --concurrency allows."
    )
    group.add_argument("--request-rate", "--rate", type=_rates, default="inf", metavar="X,...", help=text)
    text = "Shape of the gaps between arrivals: 1 is a Poisson process, less sends bursts, more is steadier."
    group.add_argument("--burstiness", type=float, default=1.0, metavar="X", help=text)
    text = "Number of requests of each level and round."
    group.add_argument("--num-requests", "--num-prompts", type=int, default=64, metavar="N", help=text)
    text = f"Number of times that each level is measured. Unset: 1, or {_COMPARISON_ROUNDS} with --against."
    group.add_argument("--rounds", type=int, default=None, metavar="N", help=text)
    group.add_argument("--load-seed", type=int, default=0, metavar="N", help="Seed of prompts and arrivals.")
    text = "Maximum time of one request, in seconds."
    group.add_argument("--timeout-s", type=float, default=600.0, metavar="X", help=text)
    text = "Maximum time to the first token of a good request, in milliseconds; goodput counts good requests. Unset: no limit."
    group.add_argument("--ttft-ms", type=float, default=None, metavar="X", help=text)
    text = "Maximum mean time of each further token of a good request, in milliseconds. Unset: no limit."
    group.add_argument("--tpot-ms", type=float, default=None, metavar="X", help=text)


def _add_dataset(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("dataset")
    text = (
        "random: prompts of random tokens. prefix_repetition: random prompts with shared prefixes. random-mm: "
        "messages with images, videos and audio of random values. custom: conversations of --dataset-path."
    )
    names = ("random", "prefix_repetition", "random-mm", "custom")
    group.add_argument("--dataset-name", choices=names, default="random", help=text)
    text = 'File with a JSON object in each line: "messages" or "prompt", and "output_tokens" where the line limits its output.'
    group.add_argument("--dataset-path", type=Path, default=None, metavar="FILE", help=text)
    text = "Length of each prompt, behind its shared prefix, in tokens."
    group.add_argument("--input-len", "--random-input-len", type=int, default=32, metavar="N", help=text)
    text = "Length of each output, in tokens; for custom, the maximum."
    group.add_argument("--output-len", "--random-output-len", type=int, default=128, metavar="N", help=text)
    text = "Length of each shared prefix of prefix_repetition, in tokens. Unset: 256."
    group.add_argument("--prefix-len", "--prefix-repetition-prefix-len", type=int, default=None, metavar="N", help=text)
    text = "Number of shared prefixes of prefix_repetition, which take turns. Unset: 10."
    group.add_argument("--num-prefixes", "--prefix-repetition-num-prefixes", type=int, default=None, metavar="N", help=text)
    add_media_options(group)
    text = "Generate the maximum of tokens for each request of custom."
    group.add_argument("--ignore-eos", action="store_true", help=text)


def _add_results(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("results")
    text = "Also write all figures to this file, as JSON."
    group.add_argument("--json", "--result", dest="json", type=Path, default=None, metavar="FILE", help=text)
    text = "Also write a report with plots to this file; it needs no network."
    group.add_argument("--html", type=Path, default=None, metavar="FILE", help=text)
    text = "Write a trace of every step in all services to this file, for ui.perfetto.dev. Not possible with --url."
    group.add_argument("--trace", type=Path, default=None, metavar="FILE", help=text)
    group.add_argument("--disable-tqdm", action="store_true", help="Show no progress bar.")


def _counts(text: str) -> tuple[int, ...]:
    return _list(text, int, "a whole number of at least 1")


def _rates(text: str) -> tuple[float, ...]:
    return _list(text, float, "a number of more than 0")


def _list(text: str, kind: type[Number], wanted: str) -> tuple[Number, ...]:
    numbers = []
    for each in text.split(","):
        try:
            number = kind(each)
        except ValueError:
            number = kind(0)
        if not number > 0:
            raise argparse.ArgumentTypeError(f"{each!r} must be {wanted}")
        numbers.append(number)
    return tuple(numbers)
