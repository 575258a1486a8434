"""Channels: opens gRPC channels with the options of all clients of Tetrad services.

Keep-alive pings detect dead peers (keepalive.py); server.py allows them. gRPC ignores unknown option keys without an error, so
tests/services/rpc/test_options.py checks that the library contains each of them.
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
    # A restarted peer on this machine serves again within one second, or a few if it loads a model: reconnect soon.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 200),
    # A container that is started again has another address: resolve it as soon, not after gRPC's 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
)


def open_channel(
    target: str, *, server_name: str = "", max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES, tls: TlsFiles | None = None
) -> grpc.aio.Channel:
    """Return a channel to `target` ("host:port", "dns:///name:port" or "unix:/path"); it connects when first used.

    Args:
        target: address of the server.
        server_name: name that its certificate must have, if `target` is an address of that name. Empty: the target's name.
        max_message_bytes: maximum size of a message, in both directions.
        tls: identity of this process; None: connections use no TLS. Those to Unix sockets never use it.

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
    """Return the options that make a channel check its server's certificate for this name instead of the target's."""
    return (("grpc.ssl_target_name_override", server_name),) if server_name else ()


def is_call_closed(error: BaseException) -> bool:
    """Return whether an error means that this process ended the call, by closing it or its channel.

    gRPC raises CancelledError for that, as if the reading task were cancelled; code that ends the task then would never answer.
    """
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and not task.cancelling()


def problem_of(channel: grpc.aio.Channel) -> str:
    """Return the reason why a channel over TLS cannot reach its server, as text; empty if it can or the reason is unknown."""
    return channel.problem if isinstance(channel, TlsChannel) else ""
