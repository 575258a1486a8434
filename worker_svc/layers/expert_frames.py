"""Expert frames: the messages between workers that share the experts of a model, over a stream socket.

A frame is a header and the bytes of some arrays. Both ends are workers of one machine, so numbers have the machine's byte
order. Knows no experts.
"""

import socket
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import torch

FORMAT = 1
"""Number of this form of messages, which workers tell each other: an update replaces them one after the other."""
_HEADER = struct.Struct("=BIIIQ")
_MOST_BYTES = 1 << 32
"""Largest body that is read, in bytes; the rows of the largest step need far less."""


class Kind(IntEnum):
    """The kind of a frame."""

    HELLO = 1
    WELCOME = 2
    CALL = 3
    ANSWER = 4
    REFUSAL = 5


class Frame(NamedTuple):
    """A received message.

    Attributes:
        kind: the kind of the message.
        layer: number of the layer among those with experts.
        rows: number of tokens, T.
        chosen: number of chosen experts of a token, C.
        body: the arrays' bytes, or a text.
    """

    kind: Kind
    layer: int
    rows: int
    chosen: int
    body: bytearray

    @property
    def text(self) -> str:
        """The body of a hello or of a refusal."""
        return self.body.decode(errors="replace")

    def tensors(self, columns: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return x [T, columns], weights [T, C] and the chosen experts [T, C] of a call. Raises ValueError for other sizes."""
        sizes = [8 * self.rows * self.chosen, 4 * self.rows * columns, 4 * self.rows * self.chosen]
        if len(self.body) != sum(sizes) or not self.rows:
            raise ValueError(f"A call of {self.rows} rows has {len(self.body)} bytes instead of {sum(sizes)}")
        ends = np.cumsum(sizes)
        chosen, x, weights = (  # the longest numbers first: all are aligned
            torch.frombuffer(self.body, dtype=dtype, count=size // dtype.itemsize, offset=int(end) - size)
            for dtype, size, end in zip((torch.int64, torch.float32, torch.float32), sizes, ends, strict=True)
        )
        return x.view(self.rows, columns), weights.view(self.rows, self.chosen), chosen.view(self.rows, self.chosen)

    def tensor(self, rows: int, columns: int) -> torch.Tensor:
        """Return the sums [rows, columns] of an answer. Raises ValueError for another size."""
        if len(self.body) != 4 * rows * columns:
            raise ValueError(f"An answer of {rows} rows has {len(self.body)} bytes instead of {4 * rows * columns}")
        return torch.frombuffer(self.body, dtype=torch.float32).view(rows, columns)


def send_text(connection: socket.socket, kind: Kind, text: str = "") -> None:
    """Send a frame with a text; raise OSError if the connection is lost or too slow."""
    body = text.encode()
    connection.sendall(_HEADER.pack(kind, 0, 0, 0, len(body)) + body)


def send_call(connection: socket.socket, layer: int, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> None:
    """Send a call; see `Frame.tensors`. Raises OSError if the connection is lost or too slow."""
    assert (x.dtype, weights.dtype, chosen.dtype) == (torch.float32, torch.float32, torch.int64), "the types of a call"
    _send(connection, (Kind.CALL, layer, len(x), chosen.shape[1]), [chosen, x, weights])


def send_answer(connection: socket.socket, sums: torch.Tensor) -> None:
    """Send the sums [T, hidden] of a call; raise OSError if the connection is lost or too slow."""
    _send(connection, (Kind.ANSWER, 0, len(sums), 0), [sums])


def receive(connection: socket.socket) -> Frame:
    """Return the next frame. Raises OSError if the connection is lost or too slow, ValueError if the bytes are no frame."""
    kind, layer, rows, chosen, size = _HEADER.unpack(_received(connection, _HEADER.size))
    if size > _MOST_BYTES:
        raise ValueError(f"A frame of {size} bytes is no frame of a worker")
    return Frame(Kind(kind), layer, rows, chosen, _received(connection, size))


def _send(connection: socket.socket, numbers: tuple[int, int, int, int], tensors: Sequence[torch.Tensor]) -> None:
    arrays = [tensor.contiguous().numpy() for tensor in tensors]
    connection.sendall(_HEADER.pack(*numbers, sum(array.nbytes for array in arrays)))
    for array in arrays:
        connection.sendall(array.data.cast("B"))


def _received(connection: socket.socket, size: int) -> bytearray:
    body = bytearray(size)
    view = memoryview(body)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise ConnectionResetError("The other worker has closed the connection")
        view = view[count:]
    return body
