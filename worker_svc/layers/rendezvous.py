"""Rendezvous: connects the ranks of a group, and opens the process groups (gloo) between them.

The connections are plain TCP; if the ranks' addresses are Unix sockets, they use the loopback interface.
"""

import glob
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from tetrad.services.errors import DeadlineExceeded, InvalidRequest, TetradError, Unavailable, one_line
from tetrad.worker_svc.core.ranks import GroupPlace

STEP_TIMEOUT_S = 60.0
"""Longest wait for a tensor in a step, in seconds."""
LIFE_S = 10 * 365 * 24 * 3600.0
"""Timeout of connections without a time limit, in seconds: ten years."""
_UNIX = "unix:"
_SCHEMES = ("dns:///", "dns:", "ipv4:", "ipv6:")
_LOOPBACK = "127.0.0.1"
_GROUP = ".group-"
"""Separator between the leader's socket and the epoch in the name of a group's file."""
_EPOCH = "epoch"
"""Key of the leader's store: the epoch of the group that it has joined."""
_RETRY_S = 0.05
"""Seconds between two tries to find the leader's store."""
_LOOK_S = 0.01
"""Seconds between two checks whether all ranks have come, and whether this one is still wanted in the group."""
_CONNECT_S = 3.0
"""Longest attempt to reach the leader's store, in seconds, before such a check."""
_MAX_PORT = 65535
_MEETING_PORT_OFFSET = 100
"""Distance of the port where ranks on several machines meet from the port of the leader's address."""


class Rendezvous:
    """The meeting point of one group's ranks; the constructor returns when all ranks have joined.

    Args:
        place: the place of this rank.

    Raises:
        DeadlineExceeded: a rank did not join in time.
        Unavailable: the ranks could not connect, or this one is no longer wanted in the group.
        InvalidRequest: an address names no host or no port, or the ranks cannot meet at its port.
    """

    def __init__(self, place: GroupPlace) -> None:
        self._place = place
        self._host, where = _meeting_place(place)
        try:
            self._store = _file_store(where, place) if isinstance(where, str) else _tcp_store(where, place)
        except (RuntimeError, OSError) as error:
            raise _not_met(place, error) from error
        try:
            self._await_others()
            self._all = self.connect("all", place.rank, place.size, place.timeout_s)
        except TetradError:
            self.close()
            raise

    def close(self) -> None:
        """Release the leader's port; the ranks stay connected."""
        self._store = self._all = None

    def _await_others(self) -> None:
        """Wait until all ranks have found the store; raise Unavailable once this rank is no longer wanted in the group."""
        place, store = self._place, c10d.PrefixStore(f"{self._place.epoch}/there", self._store)
        deadline = time.monotonic() + place.timeout_s
        others = [str(rank) for rank in range(place.size)]
        try:
            store.set(str(place.rank), "")
            while not store.check(others):
                if not place.is_wanted():
                    raise _not_wanted(place)
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"timed out after {place.timeout_s:g} s")
                # Not the store's own wait: that of a file counts whole seconds.
                time.sleep(_LOOK_S)
        except (RuntimeError, OSError) as error:
            raise _not_met(place, error) from error

    def connect(self, name: str, index: int, size: int, timeout_s: float) -> Any:
        """Return a process group of `size` ranks that all connect under this name, this one as number `index`.

        Args:
            name: name of the process group.
            index, size: number of this rank, and number of ranks.
            timeout_s: longest wait for data of another rank, in seconds.

        Raises:
            DeadlineExceeded: a rank did not join in time.
            Unavailable: the ranks could not connect.
        """
        gloo: Any = dist.ProcessGroupGloo  # torch's type stubs lack some of its methods
        options = gloo._Options()  # noqa: SLF001 - torch has no public name for it
        options._timeout = timedelta(seconds=timeout_s)  # noqa: SLF001 - of what is received, too
        options._threads = 1  # noqa: SLF001 - no public name
        try:
            options._devices = [gloo.create_device(hostname=self._host)]  # noqa: SLF001 - no public name
            group = gloo(c10d.PrefixStore(f"{self._place.epoch}/{name}", self._store), index, size, options)
            group.allreduce([torch.zeros(1)]).wait()  # gloo connects the ranks at the first use of the group
        except (RuntimeError, OSError) as error:
            raise _not_met(self._place, error) from error
        return group

    def connect_devices(self, name: str, index: int, size: int, timeout_s: float, use: Callable[[Any], None]) -> Any:
        """Return NCCL's process group of `size` ranks, one GPU each, that all connect under this name.

        Args:
            name: name of the process group.
            index, size: number of this rank, and number of ranks.
            timeout_s: longest wait for another rank, in seconds.
            use: exchanges a tensor over the process group, on every rank: NCCL connects the GPUs at the first use.

        Raises:
            DeadlineExceeded: a rank did not join in time.
            Unavailable: the GPUs could not connect.
        """
        nccl: Any = dist.ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = timedelta(seconds=timeout_s)  # noqa: SLF001 - torch has no public name for it
        try:
            group = nccl(c10d.PrefixStore(f"{self._place.epoch}/{name}-devices", self._store), index, size, options)
            use(group)
        except (RuntimeError, OSError) as error:
            raise _not_met(self._place, error) from error
        return group

    def publish(self, name: str, value: str) -> None:
        """Publish a value for all ranks."""
        c10d.PrefixStore(str(self._place.epoch), self._store).set(f"{name}-published", value)

    def published(self, name: str) -> str:
        """Wait for a value that another rank publishes, and return it; raise Unavailable or DeadlineExceeded without it."""
        try:
            found: bytes = c10d.PrefixStore(str(self._place.epoch), self._store).get(f"{name}-published")
        except (RuntimeError, OSError) as error:
            raise _not_met(self._place, error) from error
        return found.decode()


def _file_store(path: str, place: GroupPlace) -> Any:
    """Return the store in a file; the leader deletes the files of its earlier groups, which killed ranks have left."""
    file = Path(path)
    if place.rank == 0:
        for other in file.parent.glob(f"{glob.escape(file.stem)}{_GROUP}*"):
            if other != file:
                other.unlink(missing_ok=True)
    store = c10d.FileStore(path, place.size)
    store.set_timeout(timedelta(seconds=place.timeout_s))
    return store


def _tcp_store(address: tuple[str, int], place: GroupPlace) -> Any:
    """Return the leader's store for this epoch, or a member's connection to it.

    A leader closes the store of its last group when it joins the next one. A member that is earlier finds the old store; it
    then connects again until it finds the new one.
    """
    deadline = time.monotonic() + place.timeout_s
    while True:
        timeout = timedelta(seconds=max(min(deadline - time.monotonic(), _CONNECT_S), _RETRY_S))
        try:
            store = c10d.TCPStore(*address, place.size, place.rank == 0, timeout=timeout, wait_for_workers=False)
            if place.rank == 0:
                store.set(_EPOCH, str(place.epoch))
            epoch = int(store.get(_EPOCH))
        except (RuntimeError, OSError):
            if time.monotonic() >= deadline:
                raise
        else:
            if epoch == place.epoch:
                store.set_timeout(timedelta(seconds=place.timeout_s))
                return store
            if epoch > place.epoch or time.monotonic() >= deadline:
                raise RuntimeError(f"The leader is in the group of epoch {epoch}, this rank joins that of epoch {place.epoch}")
            del store
        if not place.is_wanted():
            raise _not_wanted(place)
        time.sleep(_RETRY_S)


def _meeting_place(place: GroupPlace) -> tuple[str, str | tuple[str, int]]:
    """Return this rank's host, and the leader's file or address through which the ranks find each other."""
    leader, own = place.addresses[0], place.addresses[place.rank]
    if leader.startswith(_UNIX):
        return _LOOPBACK, f"{Path(leader.removeprefix(_UNIX))}{_GROUP}{place.epoch}"
    host, port = _host_and_port(leader)
    return _host_and_port(own)[0], (host, port + _MEETING_PORT_OFFSET)


def _host_and_port(address: str) -> tuple[str, int]:
    """Return the host, without the scheme and the brackets of a gRPC target, and the port."""
    scheme = next((each for each in _SCHEMES if address.startswith(each)), "")
    host, _, port = address.removeprefix(scheme).rpartition(":")
    if not host or not port.isdecimal() or int(port) > _MAX_PORT - _MEETING_PORT_OFFSET:
        raise InvalidRequest(
            f"Rank address {address[:200]!r} is not supported: ranks on several machines need HOST:PORT, with a port of at "
            f"most {_MAX_PORT - _MEETING_PORT_OFFSET}, because they meet at the port {_MEETING_PORT_OFFSET} above it."
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def _not_wanted(place: GroupPlace) -> Unavailable:
    return Unavailable(f"Rank {place.rank} of {place.size} waits for the others no longer: it has to join another group.")


def _not_met(place: GroupPlace, error: Exception) -> TetradError:
    text = f"Rank {place.rank} of {place.size} did not meet the others: {one_line(error)}."
    if "timed out" in text.lower() or "timeout" in text.lower():
        return DeadlineExceeded(f"{text} Are all workers of the group running, and do their addresses reach each other?")
    return Unavailable(text)
