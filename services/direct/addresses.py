"""Addresses: a registry of the direct servers of this process by address. Channels look servers up and wait for them."""

import asyncio
from typing import Any, Protocol

from tetrad.services.direct.exchange import Exchange


class Acceptor(Protocol):
    """A server at an address. `is_serving`: whether it accepts calls."""

    is_serving: bool

    def accept(self, exchange: Exchange) -> Any:
        """Run a client's call."""


class Addresses:
    """The servers by address. An address may be used again when its server has left."""

    def __init__(self) -> None:
        self._servers: dict[str, Acceptor] = {}
        self._changed = asyncio.Event()

    def add(self, address: str, server: Acceptor) -> None:
        """Register a server. Raises ValueError if another one has the address."""
        if address in self._servers:
            raise ValueError(f"A server of this process is at {address} already.")
        self._servers[address] = server
        self._notify()

    def remove(self, address: str, server: Acceptor) -> None:
        """Remove a server; no effect if it was removed before."""
        if self._servers.get(address) is server:
            del self._servers[address]
            self._notify()

    def find(self, address: str) -> Acceptor | None:
        """Return the server at an address; None if there is none now."""
        return self._servers.get(address)

    async def wait_change(self) -> None:
        """Wait until a server is registered or removed."""
        await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
