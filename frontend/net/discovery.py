"""Discovery: resolves targets to addresses, and resolves them again at an interval.

A target "dns:///name:port" stands for every address of the name, each a service of its own (a headless Service, a compose
service with several containers); any other target for itself. The pools of engine cores and of tokenizers receive all
addresses and decide which members to close. A failed lookup changes nothing. Knows no services.
"""

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from tetrad.services.errors import InvalidRequest
from tetrad.services.log import get_logger

log = get_logger()

_DNS = "dns:///"
# After a loss the name is asked at once, and not again for as long: many are lost together.
_SHORTEST_S = 0.2
_WITHOUT_ANY_S = 1.0

Addresses = list[tuple[Any, ...]]
"""As socket.getaddrinfo returns them."""
Lookup = Callable[[str, int], Awaitable[list[str]]]
"""Name and port -> its addresses now; OSError, ValueError: not known."""


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """One service that a target stands for.

    Attributes:
        place: of the target in its setting.
        target: what a channel connects to.
        server_name: what its certificate must be for; empty: the target.
    """

    place: int
    target: str
    server_name: str = ""

    def on_port_of(self, targets: Sequence[str]) -> "Endpoint | None":
        """Return the endpoint of the same process at the port of `targets`, which have the same order; None: not known."""
        if self.place >= len(targets):
            return None
        other = targets[self.place]
        if bool(self.server_name) is not other.startswith(_DNS):
            return None
        if not self.server_name:
            return Endpoint(self.place, other)
        name, port = split_name(other)
        address = self.target.rpartition(":")[0]
        return Endpoint(self.place, f"{address}:{port}", name)


async def system_lookup(name: str, port: int) -> list[str]:
    """Ask the system's resolver: the hosts file, then DNS. Of a name with addresses of both kinds those of IPv4 are taken: a
    process that has both would be taken for two.
    """
    found = await _in_thread_of_its_own(partial(socket.getaddrinfo, name, port, type=socket.SOCK_STREAM))
    addresses = {str(each[4][0]) for each in found}
    of_v4 = {address for address in addresses if ":" not in address}
    return sorted(of_v4 or addresses)


async def _in_thread_of_its_own(ask: Callable[[], Addresses]) -> Addresses:
    """Return the result of a blocking call. A resolver may hang for long: the threads of the event loop would be waited for at
    the end of the process, this one is not.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Addresses] = loop.create_future()

    def settle(found: Addresses | OSError | ValueError) -> None:
        if answer.done():
            return  # no caller waits any more
        if isinstance(found, OSError | ValueError):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    def run() -> None:
        found: Addresses | OSError | ValueError
        try:
            found = ask()
        except (OSError, ValueError) as error:  # ValueError: no name can be like that
            found = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, found)

    threading.Thread(target=run, name="look-up", daemon=True).start()
    return await answer


def fixed_endpoints(targets: Sequence[str]) -> list[Endpoint]:
    """Return those of the targets that stand for themselves."""
    return [Endpoint(place, target) for place, target in enumerate(targets) if not target.startswith(_DNS)]


def check_target(target: str) -> None:
    """InvalidRequest if a target is a name that cannot be looked up."""
    if target.startswith(_DNS):
        split_name(target)


def split_name(target: str) -> tuple[str, int]:
    """Return name and port of a "dns:///name:port"; InvalidRequest if that is not what it is."""
    name, _, port = target.removeprefix(_DNS).rpartition(":")
    if not name or "/" in name or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidRequest(f"{target} is no address: dns:///name:port, with a port from 1 to 65535.")
    return name, int(port)


async def _resolve(place: int, target: str, lookup: Lookup) -> list[Endpoint]:
    name, port = split_name(target)
    addresses = sorted({ipaddress.ip_address(address.partition("%")[0]) for address in await lookup(name, port)}, key=int)
    return [Endpoint(place, f"ipv{each.version}:{_bracketed(each)}:{port}", name) for each in addresses]


def _bracketed(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    return f"[{address}]" if address.version == 6 else str(address)


class Discovery:
    """The endpoints of one setting.

    Args:
        targets: the setting.
        lookup: asks for names.
        interval_s: how often.

    Attributes:
        problem: why there are none; empty if there are.
    """

    def __init__(self, targets: Sequence[str], *, lookup: Lookup = system_lookup, interval_s: float) -> None:
        self._targets = targets
        self._lookup = lookup
        self._interval_s = interval_s
        self._found = {endpoint.place: [endpoint] for endpoint in fixed_endpoints(targets)}
        self._names = [place for place in range(len(targets)) if place not in self._found]
        self._is_wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.problem = ""

    def __str__(self) -> str:
        return ", ".join(self._targets)

    @property
    def is_single(self) -> bool:
        """Whether there can never be more than one endpoint."""
        return len(self._targets) == 1 and not self._names

    @property
    def endpoints(self) -> list[Endpoint]:
        """All that are known, in the order of the targets and, for one name, of its addresses."""
        return [endpoint for place in sorted(self._found) for endpoint in self._found[place]]

    def start(self, on_round: Callable[[list[Endpoint]], None]) -> None:
        """Call `on_round` with what is known, now and after each time that the names were asked for."""
        on_round(self.endpoints)
        if self._names:
            self._task = asyncio.create_task(self._run(on_round), name=f"discovery of {self}")

    def look_again(self) -> None:
        """Look up soon: a member is lost, and may be gone."""
        self._is_wanted.set()

    async def close(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, on_round: Callable[[list[Endpoint]], None]) -> None:
        while True:
            self._is_wanted.clear()
            try:
                for place in self._names:
                    await self._ask(place)
                on_round(self.endpoints)
            except Exception:  # as certificates that are just being replaced: who came is taken in the next round
                log.exception("discovery.round_failed", targets=str(self))
            await asyncio.sleep(_SHORTEST_S)
            try:
                async with asyncio.timeout(self._interval_s if self.endpoints else min(self._interval_s, _WITHOUT_ANY_S)):
                    await self._is_wanted.wait()
            except TimeoutError:
                pass

    async def _ask(self, place: int) -> None:
        target = self._targets[place]
        try:
            found = await _resolve(place, target, self._lookup)
        except (OSError, ValueError) as error:
            # A name without addresses is an error, too. The last addresses are still tried.
            log.debug("discovery.failed", target=target, reason=str(error))
            self.problem = "" if self.endpoints else f"{target} has no addresses ({error})"
            return
        if found != self._found.get(place):
            log.info("discovery.changed", target=target, addresses=[each.target for each in found])
        self._found[place] = found
        self.problem = ""
