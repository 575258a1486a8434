"""Carriers: how messages get from a service's clients to its servicers.

A carrier connects channels, which generated stubs are made on, with servers, which generated code adds servicers to. GRPC goes
over sockets, between processes and machines. The direct carrier (services/direct) stays in one process and event loop. The cut
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
    """Makes both ends of calls."""

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
        """Return a server that serves nothing, nowhere yet.

        Args:
            interceptors: around its handlers, the outermost first.
            options: gRPC's.
        """

    async def bind(self, server: Any, address: str, identity: Identity | None, *, callers_are_known: bool) -> str:
        """Give a server of this carrier an address; return what a client on this machine connects to.

        Args:
            server: made by this carrier, not yet started.
            address: host:port or unix:/path.
            identity: for TLS; None: connections are plain.
            callers_are_known: by their certificates or keys.

        Raises Unavailable if the address is taken, InvalidRequest if the identity has no certificate to show.
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
        """Return a channel of its own connection."""
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
