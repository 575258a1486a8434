"""Expert links: a worker's connections to the workers of other engines, which hold the other experts of its model.

Owned by the device for the lifetime of the process; used on the compute thread. A link that fails in a call is closed, so a
late answer is never read as that of a later call; the next use connects again.
"""

import select
import socket
import time

import torch

from tetrad.services.errors import Unavailable, one_line
from tetrad.worker_svc.core.ranks import EXPERTS_LOST
from tetrad.worker_svc.layers.expert_frames import Kind, receive, send_call, send_text

CONNECT_TIMEOUT_S = 20.0
"""Longest wait for another worker to start and to load its model, in seconds; the engine core then tries again."""
ANSWER_TIMEOUT_S = 60.0
"""Longest wait for the answer to a call, in seconds. A worker that hangs is replaced before, which ends the wait."""
_RETRY_S = 0.05
_LEAST_S = 1.0
"""Shortest wait for the answer to a hello, in seconds: the last attempt before the deadline may end this much after it."""


class ExpertLink:
    """The connection to one worker.

    Args:
        path: its socket.
        connect_timeout_s, answer_timeout_s: see the constants.
    """

    def __init__(
        self, path: str, connect_timeout_s: float = CONNECT_TIMEOUT_S, answer_timeout_s: float = ANSWER_TIMEOUT_S
    ) -> None:
        self._path, self._connect_timeout_s, self._answer_timeout_s = path, connect_timeout_s, answer_timeout_s
        self._connection: socket.socket | None = None
        self._hello = ""

    def connect(self, hello: str) -> None:
        """Connect, unless a connection with this hello is open. Raises Unavailable if the other worker is not ready in time."""
        if self._hello == hello and self._is_open():
            return
        self.drop()
        deadline = time.monotonic() + self._connect_timeout_s
        while self._connection is None:
            try:
                self._connection, self._hello = self._opened(hello, deadline), hello
            except (OSError, ValueError) as error:
                if time.monotonic() > deadline:
                    text = f"{self._worker} is not ready: {one_line(error)}."
                    raise Unavailable(text, reason=EXPERTS_LOST) from error
                time.sleep(_RETRY_S)

    def send(self, layer: int, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> None:
        """Send a call for a layer's experts; see Mix. The link must be connected. Raises Unavailable if it is lost."""
        try:
            send_call(self._require(), layer, x, weights, chosen)
        except OSError as error:
            raise self._lost(error) from error

    def receive(self, rows: int, columns: int) -> torch.Tensor:
        """Return the answer [rows, columns] to the call that was sent. Raises Unavailable if the worker is lost."""
        try:
            frame = receive(self._require())
            if frame.kind is not Kind.ANSWER:
                raise ValueError(frame.text)
            return frame.tensor(rows, columns)
        except (OSError, ValueError) as error:
            raise self._lost(error) from error

    def drop(self) -> None:
        """Close the connection; the next use opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _opened(self, hello: str, deadline: float) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(max(deadline - time.monotonic(), _LEAST_S))
            connection.connect(self._path)
            send_text(connection, Kind.HELLO, hello)
            answer = receive(connection)
            if answer.kind is not Kind.WELCOME:
                raise ValueError(answer.text)
            connection.settimeout(self._answer_timeout_s)
        except BaseException:
            connection.close()
            raise
        return connection

    def _is_open(self) -> bool:
        """Return whether the connection is open. Between two calls, nothing but its end makes it readable."""
        if self._connection is None:
            return False
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        return not poll.poll(0)

    def _require(self) -> socket.socket:
        if self._connection is None:
            raise ConnectionError("There is no connection")
        return self._connection

    def _lost(self, error: Exception) -> Unavailable:
        self.drop()
        return Unavailable(f"{self._worker} is lost: {one_line(error)}.", reason=EXPERTS_LOST)

    @property
    def _worker(self) -> str:
        return f"The worker at {self._path}, which holds other experts of the model,"
