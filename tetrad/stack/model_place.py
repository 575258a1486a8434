"""ModelPlace: names and addresses of the services of one model of a local stack.

The services of several models have consecutive numbers, and the socket names of a further model begin with its number:
"tokenizer-3" has `model-2-tokenizer.sock`. The first model has the sockets of a stack with one model.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tetrad.stack.engine_place import EnginePlace
from tetrad.stack.service_names import numbered


class Sizes(Protocol):
    """The numbers of services of a model."""

    @property
    def num_engines(self) -> int:
        """The number of engine cores."""

    @property
    def num_ranks(self) -> int:
        """The number of workers of an engine core."""


@dataclass(frozen=True)
class ModelPlace:
    """The position of a model in a stack, with the names and addresses of its services.

    Args:
        directory: the directory of the sockets.
        number: its number among the models, from 0.
        tokenizers: the numbers of its tokenizers among all tokenizers of the stack.
        engines: its engine cores.
    """

    directory: Path
    number: int
    tokenizers: range
    engines: tuple[EnginePlace, ...]

    @property
    def tokenizer_names(self) -> list[str]:
        """The names of the tokenizers' processes."""
        return [numbered("tokenizer", number) for number in self.tokenizers]

    @property
    def tokenizer_targets(self) -> tuple[str, ...]:
        """The addresses of the tokenizers."""
        names = (numbered("tokenizer", place) for place in range(len(self.tokenizers)))
        return tuple(f"unix:{self.directory}/{_prefix(self.number)}{name}.sock" for name in names)

    @property
    def engine_targets(self) -> tuple[str, ...]:
        """The addresses of the engine cores."""
        return tuple(place.target for place in self.engines)

    @property
    def engine_admin_targets(self) -> tuple[str, ...]:
        """The addresses of the engine cores' admin ports."""
        return tuple(place.admin_target for place in self.engines)


def model_places(directory: Path, models: Iterable[tuple[Sizes, int]]) -> Iterator[ModelPlace]:
    """Yield the place of each model.

    Args:
        directory: the directory of the sockets.
        models: for each model, its numbers of engine cores and workers, and its number of tokenizers.
    """
    num_tokenizers = num_engines = num_workers = 0
    for number, (sizes, tokenizers) in enumerate(models):
        engines = tuple(
            EnginePlace(directory, rank, sizes.num_ranks, _prefix(number), num_engines, num_workers)
            for rank in range(sizes.num_engines)
        )
        yield ModelPlace(directory, number, range(num_tokenizers, num_tokenizers + tokenizers), engines)
        num_tokenizers += tokenizers
        num_engines += len(engines)
        num_workers += len(engines) * sizes.num_ranks


def _prefix(model: int) -> str:
    """Return the prefix of the names of a model's sockets."""
    return f"{numbered('model', model)}-" if model else ""
