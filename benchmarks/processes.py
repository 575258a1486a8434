"""Processes: the CPU time and memory of a server's processes, by service, read from outside.

A process belongs to the service that its command line names (`-m tetrad.frontend`), or to the service of its parent. All others
belong to the process that started the stack.
"""

import time
from collections import defaultdict

import psutil

_SERVICES = {
    "tetrad.frontend": "frontend",
    "tetrad.tokenizer_svc": "tokenizer",
    "tetrad.engine_core_svc": "engine core",
    "tetrad.worker_svc": "worker",
}
SUPERVISOR = "supervisor"
CLIENT = "client"


class ProcessTree:
    """A process and all its descendants, grouped by service.

    Args:
        root: id of the started process. A tree that is no Tetrad stack is one group, named `name`.
        name: name of the root's group.
    """

    def __init__(self, root: int, name: str = SUPERVISOR) -> None:
        self._root, self._name = psutil.Process(root), name

    def by_service(self) -> dict[str, list[psutil.Process]]:
        """Return the running processes of each service."""
        found: dict[str, list[psutil.Process]] = defaultdict(list)
        self._walk(self._root, self._name, found)
        return found

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU seconds, user and system, that each service has used since its start."""
        used: dict[str, float] = {}
        for service, processes in self.by_service().items():
            times = [process.cpu_times() for process in processes]
            used[service] = sum(each.user + each.system for each in times)
        return used

    def memory_bytes(self) -> dict[str, list[int]]:
        """Return the proportional set size of each process, by service: each shared page is divided among its processes."""
        return {
            service: [process.memory_full_info().pss for process in processes]
            for service, processes in self.by_service().items()
        }

    def _walk(self, process: psutil.Process, service: str, found: dict[str, list[psutil.Process]]) -> None:
        try:
            service = next(filter(None, map(_service_of, process.cmdline())), service)
            children = process.children()
        except psutil.NoSuchProcess:
            return
        found[service].append(process)
        for child in children:
            self._walk(child, service, found)


def _service_of(word: str) -> str | None:
    """Return the service that a word of a command line names, by its package or a module in it."""
    return _SERVICES.get(".".join(word.split(".")[:2]))


class CpuMeter:
    """Measures the CPU seconds that a stack and this process, its client, use from the construction of the meter on.

    Args:
        tree: the processes of the server.
    """

    def __init__(self, tree: ProcessTree) -> None:
        self._tree = tree
        self._before = self._read()

    def read(self) -> dict[str, float]:
        """Return the CPU seconds since the construction, by service; those of this process have the key CLIENT."""
        return {name: used - self._before.get(name, 0.0) for name, used in self._read().items()}

    def _read(self) -> dict[str, float]:
        return {**self._tree.cpu_seconds(), CLIENT: time.process_time()}
