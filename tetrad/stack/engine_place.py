"""EnginePlace: names and addresses of one engine core of a local stack and of its workers.

A stack has one for each data-parallel rank of each model. The first has the names of a stack with one engine core:
"engine-core", "worker"; further ones have consecutive numbers: "engine-core-2", "worker-2".
"""

from dataclasses import dataclass
from pathlib import Path

from tetrad.stack.service_names import numbered


@dataclass(frozen=True)
class EnginePlace:
    """The position of an engine core in a stack, with its names and addresses.

    Args:
        directory: the directory of the sockets.
        rank: its rank among the engine cores of its model.
        num_workers: the number of ranks of its worker group.
        prefix: the prefix of the sockets' names.
        first_engine, first_worker: the numbers of engine cores and workers of the models before its own.
    """

    directory: Path
    rank: int
    num_workers: int
    prefix: str = ""
    first_engine: int = 0
    first_worker: int = 0

    @property
    def number(self) -> int:
        """The engine core's number among all engine cores of the stack, from 0."""
        return self.first_engine + self.rank

    @property
    def name(self) -> str:
        """The name of the engine core's process."""
        return numbered("engine-core", self.number)

    @property
    def target(self) -> str:
        """The address of the engine core."""
        return f"unix:{self.directory}/{self.prefix}{numbered('engine-core', self.rank)}.sock"

    @property
    def admin_target(self) -> str:
        """The address of the engine core's admin port."""
        return f"unix:{self.directory}/{self.prefix}{numbered('engine-core-admin', self.rank)}.sock"

    @property
    def worker_numbers(self) -> range:
        """The numbers of its workers among all workers of the stack, from 0."""
        return range(first := self.first_worker + self.rank * self.num_workers, first + self.num_workers)

    @property
    def worker_names(self) -> list[str]:
        """The names of the workers' processes, by rank."""
        return [numbered("worker", number) for number in self.worker_numbers]

    @property
    def worker_targets(self) -> list[str]:
        """The addresses of the workers, by rank."""
        return [f"unix:{self.directory}/{self.prefix}{name}.sock" for name in self.worker_names]

    @property
    def expert_targets(self) -> list[str]:
        """The addresses at which the workers compute experts for the workers of other engine cores, by rank."""
        return [f"unix:{self.directory}/{self.prefix}{name}-experts.sock" for name in self.worker_names]
