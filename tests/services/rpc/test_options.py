"""Option keys: gRPC ignores unknown ones silently, so each must stand in the library's binary."""

from pathlib import Path

import pytest
from grpc._cython import cygrpc

from tetrad.services.rpc.channel import CLIENT_OPTIONS, name_options
from tetrad.services.rpc.keepalive import PING_AFTER_S
from tetrad.services.rpc.server import SERVER_OPTIONS

LIMITS = (
    "grpc.max_receive_message_length",
    "grpc.max_send_message_length",
    "grpc.max_metadata_size",
    "grpc.absolute_max_metadata_size",
    "grpc.max_concurrent_streams",
)
KEYS = sorted({key for key, _ in (*CLIENT_OPTIONS, *SERVER_OPTIONS, *name_options("a"))} | set(LIMITS))


@pytest.fixture(scope="module")
def library() -> bytes:
    return Path(cygrpc.__file__).read_bytes()


@pytest.mark.parametrize("key", KEYS)
def test_the_library_knows_the_key(library, key):
    # With its terminating zero: a longer key that begins alike does not count.
    assert f"{key}\0".encode() in library


def test_an_invented_key_is_not_in_the_library(library):
    assert b"grpc.tetrad_invented_key\0" not in library


def test_a_server_allows_the_pings_of_its_clients():
    assert dict(SERVER_OPTIONS)["grpc.http2.min_ping_interval_without_data_ms"] < PING_AFTER_S * 1000
