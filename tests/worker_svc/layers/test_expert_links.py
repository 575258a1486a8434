"""Links and the server of shared experts: calls between two workers, over a real Unix socket."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tetrad.services.errors import ModelError, Unavailable
from tetrad.worker_svc.layers.expert_frames import Kind, receive, send_answer, send_text
from tetrad.worker_svc.layers.expert_links import ExpertLink
from tetrad.worker_svc.layers.expert_server import ExpertServer

X = torch.arange(6.0).view(2, 3)
WEIGHTS, CHOSEN = torch.tensor([[0.5], [2.0]]), torch.tensor([[1], [4]])


class Held:
    """Experts that multiply a row by its weight, the number of its expert and that of the layer."""

    hello, hidden_size = "0 model", 3

    def compute(self, layer: int, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        if layer == 7:
            raise RuntimeError("The seventh layer is broken")
        return x * weights * chosen * layer


@pytest.fixture
def server(tmp_path) -> Iterator[ExpertServer]:
    server = ExpertServer(tmp_path / "experts.sock", 1)
    yield server
    server.close()


@pytest.fixture
def link(tmp_path) -> Iterator[ExpertLink]:
    link = ExpertLink(str(tmp_path / "experts.sock"), connect_timeout_s=0.2, answer_timeout_s=2.0)
    yield link
    link.drop()


@contextlib.contextmanager
def peer(path: Path, answer) -> Iterator[None]:
    """Welcome one worker, receive its call, and let `answer` do the rest with the connection."""

    def run() -> None:
        connection, _ = listener.accept()
        with connection:
            receive(connection)
            send_text(connection, Kind.WELCOME)
            receive(connection)
            answer(connection)

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=run)
        thread.start()
        yield
        thread.join()


def test_a_call_brings_what_the_experts_compute(server, link):
    held = Held()
    server.serve(held)

    for layer in (1, 3):
        link.connect("0 model")
        link.send(layer, X, WEIGHTS, CHOSEN)
        assert link.receive(2, 3).equal(X * WEIGHTS * CHOSEN * layer)


def test_a_slice_of_a_larger_tensor_is_sent_alone(server, link):
    held, wide = Held(), torch.arange(24.0).view(4, 6)
    server.serve(held)
    link.connect("0 model")

    link.send(1, wide[1:3, ::2], WEIGHTS, CHOSEN)

    assert link.receive(2, 3).equal(wide[1:3, ::2] * WEIGHTS * CHOSEN)


@pytest.mark.parametrize(
    ("hello", "text"), [("1 model", "It has other weights, another place or another form"), ("0 other", "It has other weights")]
)
def test_a_worker_of_another_model_or_place_is_not_ready(server, link, hello, text):
    held = Held()
    server.serve(held)

    with pytest.raises(Unavailable, match=f"is not ready: {text}"):
        link.connect(hello)


def test_a_worker_without_a_model_is_not_ready_and_a_dropped_model_is_not_served(server, link):
    with pytest.raises(Unavailable, match="is not ready: It has not loaded its model"):
        link.connect("0 model")
    held = Held()
    server.serve(held)
    link.connect("0 model")

    del held

    link.send(1, X, WEIGHTS, CHOSEN)
    with pytest.raises(Unavailable, match="is lost: It has dropped its model"):
        link.receive(2, 3)


def test_an_error_of_the_experts_is_named_and_the_next_call_is_answered(server, link):
    held = Held()
    server.serve(held)
    link.connect("0 model")
    link.send(7, X, WEIGHTS, CHOSEN)
    with pytest.raises(Unavailable, match="is lost: Its experts failed: The seventh layer is broken"):
        link.receive(2, 3)

    link.connect("0 model")
    link.send(1, X, WEIGHTS, CHOSEN)

    assert link.receive(2, 3).equal(X * WEIGHTS * CHOSEN)


def test_a_worker_that_accepts_and_never_answers_is_not_ready_after_the_time_to_connect(tmp_path):
    """Its process is stopped: the system still accepts connections for it."""
    link = ExpertLink(str(tmp_path / "experts.sock"), connect_timeout_s=0.2, answer_timeout_s=3600.0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "experts.sock"))
        listener.listen()

        with pytest.raises(Unavailable, match="is not ready: timed out"):
            link.connect("0 model")


def test_rows_of_another_width_are_refused(server, link):
    held = Held()
    server.serve(held)
    link.connect("0 model")

    link.send(1, torch.zeros(2, 5), WEIGHTS, CHOSEN)

    with pytest.raises(Unavailable, match="A call of 2 rows has 64 bytes instead of 48"):
        link.receive(2, 5)


def test_a_worker_that_closes_between_two_calls_is_found_again(server, link, tmp_path):
    held = Held()
    server.serve(held)
    link.connect("0 model")

    server.close()
    with pytest.raises(Unavailable, match="is not ready"):
        link.connect("0 model")
    successor = ExpertServer(tmp_path / "experts.sock", 1)
    successor.serve(held)
    link.connect("0 model")
    link.send(1, X, WEIGHTS, CHOSEN)

    assert link.receive(2, 3).equal(X * WEIGHTS * CHOSEN)
    successor.close()


def test_a_server_without_a_free_thread_refuses_one_connection_and_takes_the_next(server, tmp_path, monkeypatch):
    held = Held()
    server.serve(held)
    start, failures = threading.Thread.start, [RuntimeError("can't start new thread")]
    monkeypatch.setattr(server, "_answer", answer := server._answer)

    def start_later(thread: threading.Thread) -> None:
        if thread._target == answer and failures:
            raise failures.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_later)
    link = ExpertLink(str(tmp_path / "experts.sock"), connect_timeout_s=20, answer_timeout_s=2.0)

    link.connect("0 model")

    assert not failures
    link.drop()


def test_a_worker_that_dies_in_a_call_is_lost_at_once(link, tmp_path):
    def die(connection: socket.socket) -> None:
        connection.sendall(b"half of a header"[:5])

    with peer(tmp_path / "experts.sock", die):
        link.connect("0 model")
        link.send(1, X, WEIGHTS, CHOSEN)
        with pytest.raises(Unavailable, match="is lost: The other worker has closed the connection"):
            link.receive(2, 3)

    with pytest.raises(Unavailable, match="is lost: There is no connection"):
        link.send(1, X, WEIGHTS, CHOSEN)


def test_an_answer_after_the_timeout_is_never_read(tmp_path):
    is_late = threading.Event()

    def answer_late(connection: socket.socket) -> None:
        is_late.wait()
        with contextlib.suppress(OSError):
            send_answer(connection, torch.ones(2, 3))

    link = ExpertLink(str(tmp_path / "experts.sock"), connect_timeout_s=0.2, answer_timeout_s=0.2)
    with peer(tmp_path / "experts.sock", answer_late):
        link.connect("0 model")
        link.send(1, X, WEIGHTS, CHOSEN)
        with pytest.raises(Unavailable, match="is lost: timed out"):
            link.receive(2, 3)
        is_late.set()

        with pytest.raises(Unavailable, match="There is no connection"):
            link.receive(2, 3)


def test_bytes_of_another_program_end_their_connection_alone(server, link, tmp_path):
    held = Held()
    server.serve(held)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(str(tmp_path / "experts.sock"))
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(100) == b""

    link.connect("0 model")
    link.send(1, X, WEIGHTS, CHOSEN)
    assert link.receive(2, 3).equal(X * WEIGHTS * CHOSEN)


def test_the_socket_is_of_this_user_alone_and_replaces_that_of_a_killed_process(tmp_path):
    path = tmp_path / "experts.sock"
    path.touch()

    server = ExpertServer(path, 1)

    assert path.is_socket()
    assert path.stat().st_mode & 0o777 == 0o600
    server.close()


def test_a_socket_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"socket of shared experts .*/missing/experts\.sock cannot be opened"):
        ExpertServer(tmp_path / "missing" / "experts.sock", 1)
