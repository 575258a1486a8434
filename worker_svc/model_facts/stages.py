"""Stages: divides the layers of a model among the stages of a pipeline, and returns the description of a stage.

The first stage has the input embeddings. The output layer is on the first stage, if hidden states return to it for sampling, or
on the last one; that stage gets fewer layers. Every stage has block tables for all KV groups of the model, also for groups of
which it has no layer.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod
from typing import Literal

from tetrad.services.errors import ModelError
from tetrad.worker_svc.core.ranks import Stage
from tetrad.worker_svc.model_facts.config import ModelConfig, StageOf
from tetrad.worker_svc.model_facts.tensors import tensor_shapes

OutputEnd = Literal["first", "last"]
"""The stage that has the last norm and the output layer."""


def check_stages(config: ModelConfig, size: int) -> None:
    """Raise ModelError if a model has fewer layers than stages."""
    if size > config.num_layers:
        raise ModelError(f"pipeline_parallel_size {size} exceeds this model's {config.num_layers} layers; use at most that.")


def stage_layers(config: ModelConfig, stage: Stage, output: OutputEnd = "first") -> range:
    """Return the consecutive layers of a stage, chosen such that the largest stage has as few parameters as possible.

    The output matrix of the stage `output` is included; every stage has at least one layer. `check_stages` must have passed.
    """
    costs, of_output = _layer_costs(config), config.vocab_size * config.hidden_size
    if output == "first":
        return _cut(costs, of_output, stage.size)[stage.index]
    mirrored = _cut(costs[::-1], of_output, stage.size)[stage.size - 1 - stage.index]
    return range(len(costs) - mirrored.stop, len(costs) - mirrored.start)


def stage_config(config: ModelConfig, stage: Stage, output: OutputEnd = "first") -> ModelConfig:
    """Return the description of a stage, whose layers are numbered from 0; `output` is the stage with the output layer."""
    layers = stage_layers(config, stage, output)
    of = StageOf(
        first_layer=layers.start,
        first_cache=sum(len(layer.cache_kinds) for layer in config.layers[: layers.start]),
        cache_kinds=config.cache_kinds,
        state_size=config.state_size,
        has_embeddings=stage.is_first,
        has_output=stage.is_first if output == "first" else stage.is_last,
    )
    return replace(config, layers=config.layers[layers.start : layers.stop], stage=of)


def num_reading_stages(config: ModelConfig, size: int) -> int:
    """Return the number of stages, the first ones, whose layers read rows of images: the first one, and those of DeepStack."""
    layers = [stage_layers(config, Stage(index, size)) for index in range(size)]
    return sum(each.start < max(1, config.num_deep_layers) for each in layers)


def _layer_costs(config: ModelConfig) -> list[int]:
    costs = [0] * config.num_layers
    for name, shape in tensor_shapes(config).items():
        if name.startswith("model.layers."):
            costs[int(name.split(".")[2])] += prod(shape)
    return costs


def _cut(costs: Sequence[int], first_cost: int, size: int) -> list[range]:
    """Return consecutive ranges of layers, none of them empty, such that the largest cost of a range is as small as possible.

    `first_cost` is the cost of the first range without its layers.
    """
    smallest, largest = 0, first_cost + sum(costs)
    while smallest < largest:
        middle = (smallest + largest) // 2
        if _filled(costs, first_cost, size, middle) is None:
            smallest = middle + 1
        else:
            largest = middle
    ends = _filled(costs, first_cost, size, smallest)
    assert ends is not None
    return [range(first, end) for first, end in zip([0, *ends], ends, strict=False)]


def _filled(costs: Sequence[int], first_cost: int, size: int, most: int) -> list[int] | None:
    """Return the end of each range such that none costs more than `most`, except single layers; None if impossible."""
    sums, ends = [0, *accumulate(costs)], [0]
    for number in range(size):
        room = most - (0 if number else first_cost)
        end = bisect_left(sums, sums[ends[-1]] + room + 1) - 1
        end = max(end, ends[-1] + 1) if number == 0 else end
        ends.append(min(end, len(costs) - (size - 1 - number)))
        if ends[-1] <= ends[-2]:
            return None
    return ends[1:] if ends[-1] == len(costs) else None
