"""Trials: candidate launch parameters of one kernel at one size."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu_sections.bench import Work


@dataclass(frozen=True)
class Trial:
    """The launch parameters to compare for one kernel and size.

    Attributes:
        table: the data table for the result.
        name: name of kernel and size, the key in the table.
        options: candidate parameters, in the form of the table.
        works: sets an option for this process and returns the works to time, which must run before another option is set.
    """

    table: str
    name: str
    options: Sequence[Any]
    works: Callable[[Any], Sequence[Work]]
