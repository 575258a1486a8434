"""Trials: candidate launch parameters of one kernel at one size."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu_sections.bench import Work


@dataclass(frozen=True)
class Trial:
    """The launches to measure.

    Attributes:
        table: the table of data that its outcome belongs to.
        name: of kernel and size, its key there.
        options: parameters, as the table has them.
        works: sets an option for this process, and returns what is to be timed; they are run before another option is set.
    """

    table: str
    name: str
    options: Sequence[Any]
    works: Callable[[Any], Sequence[Work]]
