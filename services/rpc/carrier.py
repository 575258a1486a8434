"""Carriers: transport messages between a service's clients and its servicers.

A carrier connects channels, on which generated stubs are made, with servers, to which generated code adds servicers. GRPC uses
sockets, between processes and machines. The direct carrier (services/direct) stays in one process and event loop. The boundary
is below stubs and servicers, so that every client, servicer and wire module works on both unchanged, with the same deadlines,
cancellations and errors.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import grpc

from tetrad.services.message_size import DEFAULT_MAX_MESSAGE_BYTES
from tetrad.services.rpc.channel import open_channel
from tetrad.services.rpc.listening import bind, warn_if_open
from tetrad.services.tls.identity import Identity, TlsFiles


class Carrier(Protocol):
    """Makes both sides of calls."""

    def connect(
        self,
        target: str,
        *,
        server_name: str = "",
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        tls: TlsFiles | None = None,
    ) -> grpc.aio.Channel:
        """Return a channel to a server; it connects when first used. See open_channel for arguments and errors."""

    def server(self, interceptors: Sequence[grpc.aio.ServerInterceptor], options: Sequence[tuple[str, int]]) -> grpc.aio.Server:
        """Return a server without services and addresses.

        Args:
            interceptors: wrap its handlers, the outermost first.
            options: options of gRPC.
        """

    async def bind(self, server: Any, address: str, identity: Identity | None, *, callers_are_known: bool) -> str:
        """Bind a server of this carrier to an address; return the address for a client on this machine.

        Args:
            server: a server of this carrier that is not started yet.
            address: host:port or unix:/path.
            identity: identity for TLS; None: connections use no TLS.
            callers_are_known: whether callers need certificates or keys.

        Raises Unavailable if the address is in use, InvalidRequest if the identity has no certificate to present.
        """


class GrpcCarrier:
    """gRPC over TCP and Unix sockets."""

    def connect(
        self,
        target: str,
        *,
        server_name: str = "",
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        tls: TlsFiles | None = None,
    ) -> grpc.aio.Channel:
        """Return a channel with its own connection."""
        return open_channel(target, server_name=server_name, max_message_bytes=max_message_bytes, tls=tls)

    def server(self, interceptors: Sequence[grpc.aio.ServerInterceptor], options: Sequence[tuple[str, int]]) -> grpc.aio.Server:
        """Return a gRPC server."""
        return grpc.aio.server(interceptors=interceptors, options=options)

    async def bind(self, server: Any, address: str, identity: Identity | None, *, callers_are_known: bool) -> str:
        """Listen on an address, and log a warning if the port is open to the network without credentials."""
        bound = await bind(server, address, identity)
        warn_if_open(bound, callers_are_known=callers_are_known, is_encrypted=identity is not None)
        return bound


GRPC = GrpcCarrier()
