"""Attacks on the public gRPC port below gRPC, by frames, connections and headers, against the simulated stack.

After each attack, and during lasting ones, a well-behaved client is answered as before, and the memory of the frontend has not
grown by more than a bounded amount.
"""

import contextlib
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import h2.config
import h2.connection
import h2.errors
import h2.exceptions
import pytest

from tetrad.v1 import inference_pb2, inference_pb2_grpc

GROWTH_BYTES = 96 << 20
SMALL_GROWTH_BYTES = 16 << 20
ANSWER_S = 10
GENERATE = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/tetrad.v1.InferenceService/Generate"),
    (":authority", "localhost"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.fixture(scope="module")
def target(start_module_server):
    return start_module_server("--device", "sim", "--max-model-len", "4096", "--tokenizer-pool-size", "1")


@pytest.fixture
def unharmed(target) -> Iterator[None]:
    """Check before and after the test that a client is answered, and that the frontend is the same and no larger."""
    frontend = target.process_of("frontend")
    expected, size = answer(target), frontend.memory_info().rss

    yield

    assert answer(target) == expected
    assert frontend.is_running()
    assert frontend.memory_info().rss < size + GROWTH_BYTES
    target.wait_idle(20)


def answer(server) -> str:
    """Return what a well-behaved client gets on a connection of its own, within ANSWER_S."""
    request = inference_pb2.GenerateRequest(text="Hello")
    with grpc.insecure_channel(server.grpc_target, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        request.sampling_params.max_tokens = 4
        request.sampling_params.seed = 3
        replies = list(inference_pb2_grpc.InferenceServiceStub(channel).Generate(request, timeout=ANSWER_S))
    return "".join(reply.text for reply in replies)


def connect(server) -> socket.socket:
    host, _, port = server.grpc_target.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=ANSWER_S)


class Http2:
    """A connection with its HTTP/2 state, for frames that no gRPC client sends."""

    def __init__(self, server) -> None:
        self.socket = connect(server)
        # The checks of outgoing frames are off: an attacker has none.
        config = h2.config.H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
        self.state = h2.connection.H2Connection(config)
        self.state.initiate_connection()
        self.flush()

    def flush(self) -> None:
        self.socket.sendall(self.state.data_to_send())

    def read_until_closed(self, timeout_s: float) -> bytes:
        """Return what comes until the server closes the connection; TimeoutError if it does not."""
        self.socket.settimeout(timeout_s)
        received = b""
        with contextlib.suppress(ConnectionError):
            while chunk := self.socket.recv(1 << 16):
                received += chunk
        return received

    def __enter__(self) -> "Http2":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def drain(sock: socket.socket) -> None:
    """Take what has come, without waiting."""
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError, ConnectionError):
        while sock.recv(1 << 16):
            pass
    sock.setblocking(True)


def test_rapid_reset_stops_nobody(target, unharmed):
    """CVE-2023-44487: calls that are cancelled as soon as they are made, thousands on a connection, from several."""
    num_sent = 0
    for _ in range(4):
        with Http2(target) as attacker, contextlib.suppress(ConnectionError):
            for stream in range(1, 2000, 2):
                attacker.state.send_headers(stream, GENERATE)
                attacker.state.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
                if stream % 200 == 1:
                    attacker.flush()
                    drain(attacker.socket)
                num_sent += 1
            attacker.flush()
        assert answer(target)

    assert num_sent >= 2000


@pytest.mark.parametrize("first", [b"", PREFACE[:10], PREFACE, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00" + bytes(100)])
def test_two_hundred_half_open_connections_stop_nobody(target, unharmed, first):
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            attacker = stack.enter_context(connect(target))
            with contextlib.suppress(ConnectionError):
                attacker.sendall(first)

        began = time.monotonic()
        assert answer(target)
        assert time.monotonic() - began < 5


def test_a_connection_that_says_nothing_is_closed(target, unharmed):
    attackers = [connect(target) for _ in range(3)]
    attackers[1].sendall(PREFACE[:10])
    attackers[2].sendall(PREFACE)

    with contextlib.ExitStack() as stack:
        for attacker in attackers:
            stack.enter_context(attacker)
        for attacker in attackers:
            attacker.settimeout(15)
            with contextlib.suppress(ConnectionError):
                while attacker.recv(1 << 16):
                    pass


def test_headers_of_a_megabyte_are_refused(target, unharmed):
    with grpc.insecure_channel(target.grpc_target) as channel:
        models = inference_pb2_grpc.ModelServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            models.ListModels(inference_pb2.ListModelsRequest(), metadata=[("x-big", "a" * (1 << 20))], timeout=ANSWER_S)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "metadata size exceeds hard limit" in (caught.value.details() or "")


def test_a_message_beyond_the_limit_is_refused(target, unharmed):
    request = inference_pb2.GenerateRequest(text="a" * (40 << 20))
    with (
        grpc.insecure_channel(target.grpc_target, options=[("grpc.max_send_message_length", -1)]) as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        list(inference_pb2_grpc.InferenceServiceStub(channel).Generate(request, timeout=ANSWER_S))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def test_a_flood_of_continuations_is_not_collected(target, unharmed):
    """CVE-2024-27316 and its like: headers that never end are read and dropped, or their connection is closed."""
    size = target.process_of("frontend").memory_info().rss
    with Http2(target) as attacker:
        literal = b"\x00\x01a\x7f\x81\x01" + b"a" * 256  # one header, not indexed: name "a", 256 letters
        attacker.socket.sendall(frame(1, 0, 1, literal))
        sent = 0
        with contextlib.suppress(ConnectionError, TimeoutError):
            attacker.socket.settimeout(3)
            while sent < 64 << 20:
                attacker.socket.sendall(frame(9, 0, 1, literal * 60))
                sent += len(literal) * 60
                if sent % (60 * 262 * 20) == 0:
                    drain_with_timeout(attacker.socket)
        assert target.process_of("frontend").memory_info().rss < size + sent // 2
        assert answer(target)


def drain_with_timeout(sock: socket.socket) -> None:
    timeout = sock.gettimeout()
    drain(sock)
    sock.settimeout(timeout)


def test_who_never_stops_sending_is_not_read_ahead(target, unharmed):
    """Frames of a type that is ignored: what is read at once must not grow with how much comes without a pause."""
    frontend, ignored = target.process_of("frontend"), frame(0xBE, 0, 0, bytes(16_384)) * 64

    def flood() -> None:
        with Http2(target) as attacker:
            for _ in range(128):
                attacker.socket.sendall(ignored)

    size = largest = frontend.memory_info().rss
    with ThreadPoolExecutor(8) as threads:
        floods = [threads.submit(flood) for _ in range(8)]
        while not all(each.done() for each in floods):
            largest = max(largest, frontend.memory_info().rss)
            time.sleep(0.01)
    for each in floods:
        each.result()
    assert largest < size + SMALL_GROWTH_BYTES


@pytest.mark.parametrize(
    "flood",
    [frame(6, 0, 0, bytes(8)), frame(4, 0, 0), frame(4, 0, 0, b"\0\4\0\0\xff\xff" * 20), frame(8, 0, 0, b"\0\0\0\1")],
    ids=["ping", "settings", "large-settings", "window"],
)
def test_a_flood_of_small_frames_stops_nobody(target, unharmed, flood):
    """The attacker never reads the answers: those must not be kept without a limit."""
    size = target.process_of("frontend").memory_info().rss
    with Http2(target) as attacker:
        attacker.socket.settimeout(1)
        with contextlib.suppress(ConnectionError, TimeoutError):
            for _ in range(200):
                attacker.socket.sendall(flood * 500)
        assert target.process_of("frontend").memory_info().rss < size + SMALL_GROWTH_BYTES
        assert answer(target)


def test_frames_of_no_sense_end_their_connection_only(target, unharmed):
    settings_of_a_stream = frame(4, 0, 9, bytes(6))
    frames = (
        frame(1, 4, 1, b"\xff" * 100),
        frame(0, 0, 7, b"x"),
        frame(3, 0, 99, bytes(4)),
        settings_of_a_stream,
        b"\xff" * 4096,
    )
    for garbage in frames:
        with Http2(target) as attacker, contextlib.suppress(ConnectionError, TimeoutError):
            attacker.socket.sendall(garbage * 10)
            attacker.read_until_closed(0.3)
        assert answer(target)


def test_a_reader_who_stops_costs_bounded_memory(target, unharmed):
    """Twenty streams whose client opens no window: their answers wait in the server, or they are ended."""
    with Http2(target) as attacker:
        request = inference_pb2.GenerateRequest(text="Hello")
        request.sampling_params.max_tokens = 4000
        request.sampling_params.ignore_eos = True
        payload = request.SerializeToString()
        attacker.state.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
        for stream in range(1, 41, 2):
            attacker.state.send_headers(stream, GENERATE)
            attacker.state.send_data(stream, b"\0" + len(payload).to_bytes(4, "big") + payload, end_stream=True)
        attacker.flush()

        assert answer(target)
