"""Listening: binds a gRPC server to its addresses: TLS on TCP with an identity, Unix sockets for this user only.

Logs a warning for a port that every host of the network can reach without credentials.
"""

import asyncio
import errno
import ipaddress
import os
import socket
from pathlib import Path

import grpc

from tetrad.services.errors import InvalidRequest, Unavailable
from tetrad.services.log import get_logger
from tetrad.services.tls.identity import Identity

log = get_logger()

_UNIX = "unix:"
_MAX_PORT = 65535


async def bind(server: grpc.aio.Server, address: str, identity: Identity | None) -> str:
    """Bind a server; return the address for a client on this machine.

    Raises:
        Unavailable: the address is in use, or no address of this machine; with the reason.
        InvalidRequest: the address has no port, or the identity has no certificate to present.
    """
    is_unix = address.startswith(_UNIX)
    if is_unix:
        await asyncio.to_thread(_remove_stale_socket, Path(address.removeprefix(_UNIX)))
    else:
        _check_port(address)
    credentials = None
    if identity is not None and not is_unix:
        if identity.current().cert is None:
            raise InvalidRequest(
                f"Listening on {address} with TLS needs tls-cert-file and tls-key-file.", field="tls_cert_file"
            )
        credentials = identity.server_credentials()
    # The umask makes the socket private from the start. For a moment it also applies to files of other threads.
    before = os.umask(0o177) if is_unix else None
    try:
        port = server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise Unavailable(f"Cannot listen on {address}: {await asyncio.to_thread(_reason, address)}") from error
    finally:
        if before is not None:
            os.umask(before)
    return address if is_unix else f"{address.rpartition(':')[0]}:{port}"


def _check_port(address: str) -> None:
    port = address.rpartition(":")[2]
    if not port.isdecimal() or int(port) > _MAX_PORT:  # gRPC would take 65536 for 0
        text = f"Cannot listen on {address}: give host:port with a port of 0 to {_MAX_PORT}, or unix:/path."
        raise InvalidRequest(text, field="listen")


def _reason(address: str) -> str:
    """Return why gRPC could not bind to an address, which it only logs: the system's answer to a bind without gRPC."""
    host, _, port = address.rpartition(":")
    try:
        if address.startswith(_UNIX):
            path = address.removeprefix(_UNIX)
            with socket.socket(socket.AF_UNIX) as probe:
                probe.bind(path)
            Path(path).unlink()
        else:
            family, kind, _, _, target = socket.getaddrinfo(host.strip("[]") or None, int(port), type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind) as probe:
                probe.bind(target)
    except OSError as error:
        hint = " Is another server running there?" if error.errno == errno.EADDRINUSE else ""
        return f"{error.strerror or error}.{hint}"
    return "gRPC could not bind to it."


def warn_if_open(address: str, *, callers_are_known: bool, is_encrypted: bool) -> None:
    """Log one warning if a port is open to other machines without credentials or without TLS.

    Args:
        address: host:port or unix:/path.
        callers_are_known: whether callers need certificates or keys.
        is_encrypted: whether the port uses TLS.
    """
    if is_local(address) or (callers_are_known and is_encrypted):
        return
    missing = [text for text, there in (("no keys or certificates", callers_are_known), ("no TLS", is_encrypted)) if not there]
    log.warning("server.open_to_the_network", address=address, why=" and ".join(missing), more="docs/security.md")


def is_local(address: str) -> bool:
    """Return whether an address, host:port or unix:/path, can be reached from this machine only."""
    return address.startswith(_UNIX) or is_loopback(address.rpartition(":")[0])


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _remove_stale_socket(path: Path) -> None:
    if path.is_socket():
        path.unlink()
