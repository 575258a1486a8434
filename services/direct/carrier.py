"""DirectCarrier: connects the services of one process without sockets, threads, copies or serialization.

Implements Carrier (rpc/carrier.py) below the generated stubs, like an in-process transport of an HTTP client: clients,
servicers and wire modules are unchanged, so a simulation runs the production code. The remaining cost of a hop is to build a
message and to read it. Used for tests, simulations and the benchmark of the split, on one event loop. It has no limits of
message sizes, no TLS and no keep-alive pings.
"""

from collections.abc import Sequence
from typing import Any

import grpc

from tetrad.services.direct.addresses import Addresses
from tetrad.services.direct.channel import DirectChannel
from tetrad.services.direct.server import DirectServer


class DirectCarrier:
    """Connects clients with servers of the same carrier. Any text is an address."""

    def __init__(self) -> None:
        self._addresses = Addresses()

    def connect(self, target: str, **_: Any) -> DirectChannel:
        """Return a channel to the server at `target`, which need not exist yet."""
        return DirectChannel(self._addresses, target)

    def server(self, interceptors: Sequence[grpc.aio.ServerInterceptor], *_: Any) -> DirectServer:
        """Return a server without an address."""
        return DirectServer(self._addresses, interceptors)

    async def bind(self, server: DirectServer, address: str, *_: Any, **__: Any) -> str:
        """Bind a server to an address, and return the address."""
        server.bind(address)
        return address
