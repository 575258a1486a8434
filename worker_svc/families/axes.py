"""Axes of rotary embeddings: reads by which of time, height and width each pair turns (M-RoPE), in models that read images.

In files, mrope_section has the number of pairs of each axis. The layout is that of transformers' class of the text model.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from tetrad.services.errors import ModelError
from tetrad.worker_svc.families.values import Values
from tetrad.worker_svc.model_facts.config import LayerConfig, ModelConfig

Layout = Callable[[Sequence[int], int], tuple[int, ...]]
"""Function (mrope_section, number of pairs) -> the axis of each pair; it raises ValueError for sections that do not fit."""
Describe = Callable[[Values], ModelConfig]
_NUM_AXES = 3


def in_sections(section: Sequence[int], num_pairs: int) -> tuple[int, ...]:
    """Return the axes of Qwen2-VL and GLM-4.1V: first the pairs of time, then those of height, then those of width."""
    if sum(section) != num_pairs:
        raise ValueError(f"its sum is {sum(section)}, and a head turns {num_pairs} pairs")
    return tuple(axis for axis, count in enumerate(section) for _ in range(count))


def in_turns(section: Sequence[int], num_pairs: int) -> tuple[int, ...]:
    """Return the axes of Qwen3-VL and Qwen3.5: time, height and width in turns, and time behind the end of the others."""
    ends = [num_pairs, *(_NUM_AXES * count for count in section[1:])]
    return tuple(pair % _NUM_AXES if pair < ends[pair % _NUM_AXES] else 0 for pair in range(num_pairs))


def with_axes(describe: Describe, layout: Layout, default: Sequence[int]) -> Describe:
    """Return the describing function of a text model whose pairs turn by three axes; `default`: the section of a config."""

    def described(values: Values) -> ModelConfig:
        config = describe(values)
        places = (values.get("rope_parameters", default={}), values.get("rope_scaling", default={}))
        section = next((place["mrope_section"] for place in places if place.get("mrope_section")), default)
        try:
            return replace(config, layers=tuple(_turned(layer, layout, _counts(section)) for layer in config.layers))
        except ValueError as error:
            raise ModelError(f"The model's config is impossible: mrope_section is {str(section)[:40]}, {error}.") from error

    return described


def _counts(section: object) -> list[int]:
    if not isinstance(section, Sequence) or len(section) != _NUM_AXES or not all(type(each) is int for each in section):
        raise ValueError("it must be three numbers of pairs")
    if min(section) < 0:
        raise ValueError("no number may be negative")
    return list(section)


def _turned(layer: LayerConfig, layout: Layout, section: Sequence[int]) -> LayerConfig:
    rope = layer.rope
    return layer if rope is None else replace(layer, rope=replace(rope, axes=layout(section, rope.dim // 2)))
