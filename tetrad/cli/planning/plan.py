"""`tetrad plan`: prints a table of memory, tokens that fit, rates and communication of every split of a model over GPUs."""

import argparse
import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

from tetrad.cli.models.description import ModelDescription
from tetrad.cli.models.named_model import describe_model
from tetrad.cli.models.options import add_json, add_revision
from tetrad.cli.models.texts import binary_size, decimal_size, table
from tetrad.cli.options import new_parser
from tetrad.cli.planning.forecast import Forecast, Workload, forecast
from tetrad.cli.planning.gpu_types import GPU_TYPES, GpuType
from tetrad.cli.planning.number_types import CACHE_DTYPES, DTYPES, QUANTIZATIONS, WeightBytes, matrix_bytes
from tetrad.cli.planning.splits import Split, splits_of
from tetrad.cli.planning.tower import count_tower
from tetrad.services.errors import InvalidRequest, ModelError
from tetrad.worker_svc.families.encoders import is_encoder
from tetrad.worker_svc.families.registry import supported_config

_MAX_GPUS = 1024
_MOST = 1_000_000_000
"""Largest value of any other number: products of such values are finite."""
_FIGURES = {
    "memory_gib": "Memory of a GPU that a process can use, in GiB.",
    "memory_gb_s": "Bandwidth of a GPU's memory, in 1e9 bytes a second.",
    "tflops": "Dense products of a GPU in bfloat16, in 1e12 a second.",
    "link_gb_s": "Bandwidth from one GPU to another, in 1e9 bytes a second.",
    "link_latency_us": "Time of one sum or message between GPUs beside its bytes, in microseconds.",
}


_LEGEND = (
    "weights, KV cache: of the rank with the least room. Rates: tokens/s of all GPUs, upper limits by memory and products.",
    "a token: time between two tokens of one of so many requests; links: the part of it in which GPUs exchange values.",
    "TP: ranks with a part of every layer; PP: stages with some of the layers; DP: engines with the whole model.",
)


def run(arguments: list[str]) -> int:
    """Print the table."""
    options = _parser().parse_args(arguments)
    gpu, workload = _gpu(options), _workload(options)
    model, where = describe_model(options.model, options.revision)
    if is_encoder(model.config):
        raise ModelError(f"{options.model} is an encoder: it keeps no keys and values, and runs on one worker.")
    config = supported_config(model.config)
    if config.encoder_length:
        raise ModelError(f"{options.model} has an encoder and a decoder: it runs on one worker with the CPU device.")
    if workload.context > config.max_position_embeddings:
        limit = config.max_position_embeddings
        raise InvalidRequest(f"context is {workload.context}, but the model's longest is {limit}.", field="context")
    weights = _weights(model, options, is_gguf=where.endswith(".gguf"))
    tower_bytes = count_tower(model.config) * DTYPES[options.dtype]
    cache = CACHE_DTYPES[options.dtype if options.kv_cache_dtype == "auto" else options.kv_cache_dtype]
    found, refused = [], []
    for split in splits_of(options.gpus):
        try:
            figures = forecast(
                config,
                split,
                gpu,
                workload,
                weights=weights,
                cache_bytes=cache,
                expert_parallel=options.enable_expert_parallel,
                tower_bytes=tower_bytes,
            )
            found.append(figures)
        except ModelError as error:
            refused.append((split, error.message))
    if options.json:
        print(_json(found, refused, gpu))
    else:
        print("\n".join([*_lines(options, gpu, workload, found, refused), *_about_tower(tower_bytes)]))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = new_parser(
        "plan",
        "Show memory and speed of each split of a model over GPUs: memory of a rank, tokens that fit, the highest rates that "
        "the GPUs' data sheets allow, and the data that GPUs exchange. Downloads config.json at most, and needs no GPU.",
    )
    parser.add_argument("model", metavar="MODEL", help="Built-in name, directory, .gguf file or Hugging Face id.")
    add_revision(parser)
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="Number of GPUs to divide the model over.")
    parser.add_argument("--gpu-type", choices=sorted(GPU_TYPES), default="H200", help="Type of the GPUs.")
    parser.add_argument("--context", type=int, default=1024, metavar="N", help="Mean number of tokens of a running request.")
    parser.add_argument(
        "--requests", type=int, default=64, metavar="N", help="Number of requests that run at a time, on all GPUs together."
    )
    parser.add_argument(
        "--dtype", choices=tuple(DTYPES), default="bfloat16", help="Data type of tensors that are not quantized."
    )
    text = "Type to which the weights of layers are rounded at load. Unset: the checkpoint's type."
    parser.add_argument("--quantization", choices=tuple(QUANTIZATIONS), help=text)
    kinds = ("auto", *CACHE_DTYPES)
    parser.add_argument("--kv-cache-dtype", choices=kinds, default="auto", help="Data type of keys and values. auto: --dtype.")
    text = "Share of a GPU's memory that may be used, 0 to 1."
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.9, metavar="X", help=text)
    text = "Maximum number of tokens of a step."
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048, metavar="N", help=text)
    text = "Maximum number of requests that run on an engine at a time."
    parser.add_argument("--max-num-seqs", type=int, default=256, metavar="N", help=text)
    text = "Ranks of a stage have whole experts instead of a part of each."
    parser.add_argument("--enable-expert-parallel", action="store_true", help=text)
    for name, text in _FIGURES.items():
        flag = f"--gpu-{name.replace('_', '-')}"
        parser.add_argument(flag, type=float, metavar="X", help=f"{text} Unset: that of --gpu-type.")
    add_json(parser)
    return parser


def _weights(model: ModelDescription, options: argparse.Namespace, *, is_gguf: bool) -> WeightBytes:
    if not is_gguf:
        return WeightBytes(options.dtype, matrix_bytes(model.config, options.dtype, options.quantization))
    if options.quantization:
        kind = options.quantization
        raise InvalidRequest(f"quantization {kind} cannot be had of a .gguf file: its weights have types of their own.")
    assert model.num_parameters, "a GGUF file's header has all shapes"
    return WeightBytes(options.dtype, model.weights_bytes / model.num_parameters, keeps_tables=False)  # the mean over its types


def _gpu(options: argparse.Namespace) -> GpuType:
    given = {name: value for name in _FIGURES if (value := getattr(options, f"gpu_{name}")) is not None}
    for name, value in given.items():
        if not math.isfinite(value) or value < 0 or (value == 0 and name != "link_latency_us"):
            raise InvalidRequest(f"gpu_{name} is {value:g}; it must be a positive number.", field=f"gpu_{name}")
        if value > _MOST:
            raise InvalidRequest(f"gpu_{name} is {value:g}; it must be at most {_MOST:g}.", field=f"gpu_{name}")
    return dataclasses.replace(GPU_TYPES[options.gpu_type], **given)


def _workload(options: argparse.Namespace) -> Workload:
    for name in ("gpus", "context", "requests", "max_num_batched_tokens", "max_num_seqs"):
        if (value := getattr(options, name)) < 1:
            raise InvalidRequest(f"{name} is {value}; it must be at least 1.", field=name)
        if value > (most := _MAX_GPUS if name == "gpus" else _MOST):
            raise InvalidRequest(f"{name} is {value}; it must be at most {most}.", field=name)
    if not 0 < (share := options.gpu_memory_utilization) <= 1:
        raise InvalidRequest(f"gpu_memory_utilization is {share:g}; it must be above 0 and at most 1.")
    return Workload(
        options.context, options.requests, options.max_num_batched_tokens, options.max_num_seqs, options.gpu_memory_utilization
    )


def _lines(
    options: argparse.Namespace,
    gpu: GpuType,
    workload: Workload,
    found: Sequence[Forecast],
    refused: Sequence[tuple[Split, str]],
) -> list[str]:
    many = f"{workload.num_requests} requests"
    head = (
        "TP",
        "PP",
        "DP",
        "weights",
        "KV cache",
        "KV tokens",
        "1 request",
        many,
        "a token",
        "links",
        "prompts",
        "sent a token",
    )
    card = f"{gpu.memory_gib:g} GiB, {gpu.memory_gb_s:g} GB/s, {gpu.tflops:g} TFLOP/s"
    links = f"links of {gpu.link_gb_s:g} GB/s and {gpu.link_latency_us:g} us"
    lines = [
        f"{options.model} on {options.gpus} {gpu.name}: {card}; {links}; requests of {workload.context} tokens",
        "",
        *table([head, *(_row(each) for each in found)]),
        "",
        *_LEGEND,
    ]
    if runnable := [(each.one, each.many, each.split) for each in found if each.one and each.many]:
        one = max(runnable, key=lambda each: each[0].tokens_per_s)[2]
        of_many = max(runnable, key=lambda each: each[1].tokens_per_s)[2]
        lines.append(f"Fastest for one request: {one}; for {workload.num_requests}: {of_many}.")
    by_reason: dict[str, list[str]] = {}
    for split, why in refused:
        by_reason.setdefault(why, []).append(str(split))
    lines += [f"Not possible: {', '.join(splits)}. {why}" for why, splits in by_reason.items()]
    return lines


def _about_tower(size_bytes: float) -> list[str]:
    if not size_bytes:
        return []
    ranks = "each rank of the first and of the last stage, and of the stages that read further rows of images"
    return [f"Images: the vision model takes {binary_size(size_bytes)} on {ranks}; it is part of the weights above."]


def _row(each: Forecast) -> tuple[str, ...]:
    split = each.split
    sizes = (str(split.tensor), str(split.pipeline), str(split.data), binary_size(each.weights_bytes))
    if each.one is None or each.many is None or each.prompt_tokens_per_s is None:
        missing = "does not fit" if each.kv_bytes > 0 else f"{binary_size(-each.kv_bytes)} too little"
        return (*sizes, missing, f"{each.kv_tokens:,}", *("-",) * 6)
    return (
        *sizes,
        binary_size(each.kv_bytes),
        f"{each.kv_tokens:,}",
        f"{each.one.tokens_per_s:,.0f}",
        f"{each.many.tokens_per_s:,.0f}",
        f"{each.many.step_seconds * 1e3:.2f} ms",
        f"{each.many.link_seconds * 1e3:.2f} ms",
        f"{each.prompt_tokens_per_s:,.0f}",
        decimal_size(each.link_bytes),
    )


def _json(found: Sequence[Forecast], refused: Sequence[tuple[Split, str]], gpu: GpuType) -> str:
    splits = [dataclasses.asdict(each) for each in found]
    impossible: list[dict[str, Any]] = [{"split": dataclasses.asdict(split), "problem": why} for split, why in refused]
    return json.dumps({"gpu": dataclasses.asdict(gpu), "splits": splits, "impossible": impossible}, indent=2)
