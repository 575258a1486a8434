"""Processes: CPU time and memory of a server's processes, service by service, read from outside.

A process belongs to the service of its command line (`-m tetrad.frontend`) or of its parent; the others belong to the process
that started the stack.
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
    """The processes under one, grouped by service.

    Args:
        root: process id of what was started; one that is no Tetrad stack is one group, named `name`.
        name: of the root's own group.
    """

    def __init__(self, root: int, name: str = SUPERVISOR) -> None:
        self._root, self._name = psutil.Process(root), name

    def by_service(self) -> dict[str, list[psutil.Process]]:
        """Return the processes that live now."""
        found: dict[str, list[psutil.Process]] = defaultdict(list)
        self._walk(self._root, self._name, found)
        return found

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU seconds used so far, user and system, by service."""
        used: dict[str, float] = {}
        for service, processes in self.by_service().items():
            times = [process.cpu_times() for process in processes]
            used[service] = sum(each.user + each.system for each in times)
        return used

    def memory_bytes(self) -> dict[str, list[int]]:
        """Return the proportional set size of each process, by service: shared pages are shared out."""
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
    """CPU seconds that a stack and this process, its client, use from now on.

    Args:
        tree: of the server.
    """

    def __init__(self, tree: ProcessTree) -> None:
        self._tree = tree
        self._before = self._read()

    def read(self) -> dict[str, float]:
        """Return the seconds since the meter was made, by service; the client's under CLIENT."""
        return {name: used - self._before.get(name, 0.0) for name, used in self._read().items()}

    def _read(self) -> dict[str, float]:
        return {**self._tree.cpu_seconds(), CLIENT: time.process_time()}
