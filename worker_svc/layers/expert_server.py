"""Expert server: computes this worker's experts for the workers of other engines, on threads beside the compute thread.

Owned by the device for the lifetime of the process. A thread per connection waits for calls without using the processor and
waits for no other worker, so workers that wait for each other's answers cannot block each other. Experts are functions of the
rows of a call alone: what this worker or a third one computes meanwhile does not change an answer.
"""

import contextlib
import socket
import threading
import weakref
from pathlib import Path
from typing import Protocol

import torch

from tetrad.services.errors import ModelError, one_line
from tetrad.services.log import get_logger
from tetrad.worker_svc.layers.expert_frames import Frame, Kind, receive, send_answer, send_text

SEND_TIMEOUT_S = 60.0
"""Longest wait for another worker to read an answer, in seconds."""

_RETRY_S = 1.0

log = get_logger()


class HeldExperts(Protocol):
    """The experts of a loaded model on this worker.

    Attributes:
        hello: the text that another worker must send first; it names the model and this worker's place.
        hidden_size: number of columns of a row.
    """

    hello: str
    hidden_size: int

    def compute(self, layer: int, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Return the weighted sums [T, hidden] of this worker's chosen experts; see Mix."""


class ExpertServer:
    """Listens at a Unix socket.

    Args:
        path: the socket; a file that a killed process has left there is replaced.
        num_threads: number of torch's threads for a call.

    Raises ModelError if the socket cannot be opened.
    """

    def __init__(self, path: Path, num_threads: int) -> None:
        self._num_threads = num_threads
        self._held: weakref.ref[HeldExperts] | None = None
        self._lock = threading.Lock()  # guards `_connections`, and that `close` sees all of them
        self._connections: set[socket.socket] = set()
        self._closed = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            path.unlink(missing_ok=True)
            self._listener.bind(str(path))
            path.chmod(0o600)  # before a connection is possible
            self._listener.listen()
        except OSError as error:
            self._listener.close()
            raise ModelError(f"The socket of shared experts {path} cannot be opened: {one_line(error)}.") from error
        threading.Thread(target=self._accept, name="experts", daemon=True).start()

    def serve(self, held: HeldExperts) -> None:
        """Serve these experts from now on, until their model is dropped: the server keeps no model in memory."""
        self._held = weakref.ref(held)

    def close(self) -> None:
        """Stop serving: the calls of other workers fail. Safe to call twice, on any thread."""
        with self._lock:
            self._closed.set()
            connections = list(self._connections)
        for each in (self._listener, *connections):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if not self._closed.is_set():  # the process has too many open files
                    log.warning("experts.not_accepted", error=one_line(error))
                    self._closed.wait(_RETRY_S)
                continue
            with self._lock:
                if self._closed.is_set():
                    connection.close()
                    return
                self._connections.add(connection)
            try:
                threading.Thread(target=self._answer, args=(connection,), name="experts", daemon=True).start()
            except RuntimeError as error:  # the system can start no more threads
                log.warning("experts.not_accepted", error=one_line(error))
                self._forget(connection)
                connection.close()
                self._closed.wait(_RETRY_S)

    def _answer(self, connection: socket.socket) -> None:
        """Answer a connection's calls until it ends, or its model is dropped."""
        torch.set_num_threads(self._num_threads)
        try:
            with connection, torch.inference_mode(), contextlib.suppress(OSError):
                connection.settimeout(SEND_TIMEOUT_S)
                hello = receive(connection)
                if held := self._welcomed(connection, hello):
                    while self._answer_next(connection, held):
                        pass
        except Exception as error:  # a bug or bytes of another program end one connection, not the worker
            log.warning("experts.connection_failed", exc_info=error)
        finally:
            self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.discard(connection)

    def _welcomed(self, connection: socket.socket, hello: Frame) -> "weakref.ref[HeldExperts] | None":
        reference = self._held
        held = None if reference is None else reference()
        if held is None:
            send_text(connection, Kind.REFUSAL, "It has not loaded its model")
        elif (hello.kind, hello.text) != (Kind.HELLO, held.hello):
            send_text(connection, Kind.REFUSAL, "It has other weights, another place or another form of messages")
        else:
            send_text(connection, Kind.WELCOME)
            return reference
        return None

    def _answer_next(self, connection: socket.socket, reference: "weakref.ref[HeldExperts]") -> bool:
        """Answer one call; return whether another one may follow."""
        connection.settimeout(None)
        call = receive(connection)
        connection.settimeout(SEND_TIMEOUT_S)
        held = reference()
        if held is None:
            send_text(connection, Kind.REFUSAL, "It has dropped its model")
            return False
        try:
            sums = held.compute(call.layer, *call.tensors(held.hidden_size))
        except Exception as error:
            send_text(connection, Kind.REFUSAL, f"Its experts failed: {one_line(error)}")
            raise
        send_answer(connection, sums)
        return True
