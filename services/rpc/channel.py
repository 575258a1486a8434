"""Channels: opens gRPC channels with the options of all clients of Tetrad services.

Keep-alive pings find dead peers (keepalive.py); server.py allows them. Unknown option keys are silently ignored by gRPC, so
tests/services/rpc/test_options.py looks each of them up in the library.
"""

import asyncio

import grpc

from tetrad.services.message_size import DEFAULT_MAX_MESSAGE_BYTES
from tetrad.services.rpc.keepalive import KEEPALIVE_OPTIONS
from tetrad.services.tls.channel import TlsChannel
from tetrad.services.tls.identity import Identity, TlsFiles

CLIENT_OPTIONS: tuple[tuple[str, int], ...] = (
    *KEEPALIVE_OPTIONS,
    ("grpc.http2.max_pings_without_data", 0),
    # A peer that restarts on one machine is back within a second, with a model to load within some: look again soon.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 200),
    # A container that is started again has another address: ask for it as soon, not after gRPC's 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
)


def open_channel(
    target: str, *, server_name: str = "", max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES, tls: TlsFiles | None = None
) -> grpc.aio.Channel:
    """Return a channel to `target` ("host:port", "dns:///name:port" or "unix:/path"); it connects when first used.

    Args:
        target: address of the server.
        server_name: name that its certificate must carry, where `target` is an address of that name. Empty: the target's.
        max_message_bytes: largest message either way.
        tls: identity of this process; None: connections are plain. Those to Unix sockets always are.

    Raises:
        InvalidRequest: the TLS files cannot be used.
    """
    limits = (
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
    )
    if tls is not None and not target.startswith("unix:"):
        return TlsChannel(target, (*CLIENT_OPTIONS, *limits, *name_options(server_name)), Identity(tls))
    return grpc.aio.insecure_channel(target, options=CLIENT_OPTIONS + limits)


def name_options(server_name: str) -> tuple[tuple[str, str], ...]:
    """Return the options that make a channel check the certificate of its server against a name that is not in its target."""
    return (("grpc.ssl_target_name_override", server_name),) if server_name else ()


def is_call_closed(error: BaseException) -> bool:
    """Return whether an error says that the call was ended in this process, by closing it or its channel.

    To who reads the call that looks like the end of the own task; what takes it for that never answers.
    """
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and not task.cancelling()


def problem_of(channel: grpc.aio.Channel) -> str:
    """Return why a channel over TLS cannot reach its server, in words; empty if it can, or if the reason is unknown."""
    return channel.problem if isinstance(channel, TlsChannel) else ""
