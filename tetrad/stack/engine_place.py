"""EnginePlace: names and addresses of one engine core of a local stack and of its workers.

A stack has one for each data-parallel rank. The first has the names of a stack with one engine core: "engine-core", "worker";
further ones are numbered through: "engine-core-2", "worker-2".
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class EnginePlace:
    """An engine core's place in a stack.

    Args:
        directory: of the sockets.
        rank: among the engine cores.
        num_workers: ranks of its worker group.
    """

    directory: Path
    rank: int
    num_workers: int

    @property
    def name(self) -> str:
        """Of the engine core's process."""
        return numbered("engine-core", self.rank)

    @property
    def target(self) -> str:
        """Address of the engine core."""
        return f"unix:{self.directory}/{self.name}.sock"

    @property
    def admin_target(self) -> str:
        """Address of the engine core's admin port."""
        return f"unix:{self.directory}/{numbered('engine-core-admin', self.rank)}.sock"

    @property
    def worker_numbers(self) -> range:
        """The numbers of its workers among all of the stack, from 0."""
        return range(self.rank * self.num_workers, (self.rank + 1) * self.num_workers)

    @property
    def worker_names(self) -> list[str]:
        """Of the workers' processes, by rank."""
        return [numbered("worker", number) for number in self.worker_numbers]

    @property
    def worker_targets(self) -> list[str]:
        """Addresses of the workers, by rank."""
        return [f"unix:{self.directory}/{name}.sock" for name in self.worker_names]


def engine_places(directory: Path, num_engines: int, num_workers: int) -> tuple[EnginePlace, ...]:
    """Return the places of all engine cores of a stack."""
    return tuple(EnginePlace(directory, rank, num_workers) for rank in range(num_engines))


def numbered(kind: str, number: int) -> str:
    """Return the name of service `number` of a kind, counted from 0: "worker", "worker-2", ..."""
    return f"{kind}-{number + 1}" if number else kind
