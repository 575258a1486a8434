"""Splits: the ways to divide GPUs into engines, stages and ranks, and the layers of each stage."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Split:
    """How GPUs share the work.

    Attributes:
        tensor: ranks that have a part of every layer.
        pipeline: stages, each with a part of the layers.
        data: engines, each with the whole model.
    """

    tensor: int
    pipeline: int
    data: int

    def __str__(self) -> str:
        """Return TP, PP and DP, those of 1 left out."""
        sizes = (("TP", self.tensor), ("PP", self.pipeline), ("DP", self.data))
        return " ".join(f"{name} {size}" for name, size in sizes if size > 1) or "one GPU"


def splits_of(num_gpus: int) -> Iterator[Split]:
    """Yield every split that uses all GPUs: those with more engines first, then those with fewer stages."""
    for data in _divisors(num_gpus)[::-1]:
        for pipeline in _divisors(num_gpus // data):
            yield Split(num_gpus // data // pipeline, pipeline, data)


def stages_of(num_layers: int, num_stages: int) -> Sequence[range]:
    """Return the layers of each stage, as vLLM cuts them: what is left over goes to the stages before the last, from the back.

    Args:
        num_layers: of the model, at least `num_stages`.
        num_stages: how many there are.
    """
    each, rest = divmod(num_layers, num_stages)
    sizes = [each] * num_stages
    for number in range(rest):
        sizes[num_stages - 2 - number] += 1
    ends = [sum(sizes[: number + 1]) for number in range(num_stages)]
    return [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]
