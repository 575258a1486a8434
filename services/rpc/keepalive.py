"""Keep-alive: the gRPC options by which both ends of a connection detect a dead peer within 14 s.

After PING_AFTER_S without data gRPC sends a ping; if it is not answered within PING_TIMEOUT_S, gRPC closes the connection. A
peer that stalls for less time keeps its connection. gRPC also pings beside data, to measure bandwidth, and sends no second ping
meanwhile. So `grpc.http2.ping_timeout_ms`, 60 s by default, limits every ping, and `grpc.keepalive_timeout_ms` only the wait
for TCP acknowledgements. A full Unix socket accepts no ping: the supervisor detects such a peer, over its own connection, which
is never full (tetrad/readiness.py).
"""

PING_AFTER_S = 5
PING_TIMEOUT_S = 9

KEEPALIVE_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", PING_AFTER_S * 1000),
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_S * 1000),
    ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_S * 1000),
)
