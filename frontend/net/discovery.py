"""Discovery: resolves targets to addresses, and repeats this at an interval.

A target "dns:///name:port" stands for every address of the name, each a separate service (a headless Service, a compose
service with several containers); any other target is a single address. The pools of engine cores and of tokenizers receive all
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
# After a loss the name is resolved at once, and again not before this time in seconds: several losses happen together.
_SHORTEST_S = 0.2
_WITHOUT_ANY_S = 1.0

Addresses = list[tuple[Any, ...]]
"""The return type of socket.getaddrinfo."""
Lookup = Callable[[str, int], Awaitable[list[str]]]
"""Returns the present addresses of a name and port; raises OSError or ValueError if there are none."""


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """One service of a target.

    Attributes:
        place: index of the target in its setting.
        target: address that a channel connects to.
        server_name: name that its certificate must have; empty: the target's.
    """

    place: int
    target: str
    server_name: str = ""

    def on_port_of(self, targets: Sequence[str]) -> "Endpoint | None":
        """Return the endpoint of the same process at the port in `targets`, which have the same order; None: unknown."""
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
    """Resolve a name by the system's resolver: the hosts file, then DNS.

    If a name has IPv4 and IPv6 addresses, only the former are returned: a process with both would count as two.
    """
    found = await _in_thread_of_its_own(partial(socket.getaddrinfo, name, port, type=socket.SOCK_STREAM))
    addresses = {str(each[4][0]) for each in found}
    of_v4 = {address for address in addresses if ":" not in address}
    return sorted(of_v4 or addresses)


async def _in_thread_of_its_own(ask: Callable[[], Addresses]) -> Addresses:
    """Return the result of a blocking call, made in a new daemon thread.

    A resolver may hang for long: at its end a process waits for the event loop's threads, but not for this one.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Addresses] = loop.create_future()

    def settle(found: Addresses | OSError | ValueError) -> None:
        if answer.done():
            return  # the caller was cancelled
        if isinstance(found, OSError | ValueError):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    def run() -> None:
        found: Addresses | OSError | ValueError
        try:
            found = ask()
        except (OSError, ValueError) as error:  # ValueError: not a valid name
            found = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, found)

    threading.Thread(target=run, name="look-up", daemon=True).start()
    return await answer


def fixed_endpoints(targets: Sequence[str]) -> list[Endpoint]:
    """Return the endpoints of the targets that are addresses, without the names to resolve."""
    return [Endpoint(place, target) for place, target in enumerate(targets) if not target.startswith(_DNS)]


def check_target(target: str) -> None:
    """Raise InvalidRequest if a target is a malformed "dns:///name:port"."""
    if target.startswith(_DNS):
        split_name(target)


def split_name(target: str) -> tuple[str, int]:
    """Return name and port of a "dns:///name:port"; InvalidRequest for another form."""
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
        targets: the targets in the setting.
        lookup: resolves names.
        interval_s: seconds between two rounds of lookups.

    Attributes:
        problem: why no endpoint is known; empty if there are any.
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
        """Whether the setting has exactly one target, and that is an address."""
        return len(self._targets) == 1 and not self._names

    @property
    def endpoints(self) -> list[Endpoint]:
        """All known endpoints, in the order of the targets and, for one name, of its addresses."""
        return [endpoint for place in sorted(self._found) for endpoint in self._found[place]]

    def start(self, on_round: Callable[[list[Endpoint]], None]) -> None:
        """Call `on_round` with all known endpoints, now and after each round of lookups."""
        on_round(self.endpoints)
        if self._names:
            self._task = asyncio.create_task(self._run(on_round), name=f"discovery of {self}")

    def look_again(self) -> None:
        """Start the next round of lookups soon: a member is lost, and may have been removed."""
        self._is_wanted.set()

    async def close(self) -> None:
        """Stop the lookups."""
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
            except Exception:  # for example certificates that are just being replaced; the next round adds new endpoints
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
            # A name without addresses is an error, too. The last known addresses stay in use.
            log.debug("discovery.failed", target=target, reason=str(error))
            self.problem = "" if self.endpoints else f"{target} has no addresses ({error})"
            return
        if found != self._found.get(place):
            log.info("discovery.changed", target=target, addresses=[each.target for each in found])
        self._found[place] = found
        self.problem = ""
