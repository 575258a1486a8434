"""Splits: lists the ways to divide GPUs into engines, stages and ranks."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Split:
    """One way to divide a model over GPUs.

    Attributes:
        tensor: number of ranks, each with a part of every layer.
        pipeline: number of stages, each with some of the layers.
        data: number of engines, each with the whole model.
    """

    tensor: int
    pipeline: int
    data: int

    def __str__(self) -> str:
        """Return the sizes of TP, PP and DP that are above 1, as text."""
        sizes = (("TP", self.tensor), ("PP", self.pipeline), ("DP", self.data))
        return " ".join(f"{name} {size}" for name, size in sizes if size > 1) or "one GPU"


def splits_of(num_gpus: int) -> Iterator[Split]:
    """Yield all splits that use all GPUs: those with more engines first, then those with fewer stages."""
    for data in _divisors(num_gpus)[::-1]:
        for pipeline in _divisors(num_gpus // data):
            yield Split(num_gpus // data // pipeline, pipeline, data)


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]
