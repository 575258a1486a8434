"""Order channel: carries the leader's orders to the members of a group, each as integers and an optional matrix of floats.

Orders are sent over torch.distributed (gloo); ranks on one machine may have another channel.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from tetrad.worker_svc.layers.collectives import Connections, finding_losses
from tetrad.worker_svc.layers.rendezvous import Rendezvous

_SHORT = 2048
"""Number of integers in the first message of an order; a longer order takes a second message."""
_NUM_SENT = 64
"""Largest number of sent messages that are not confirmed yet; the steps in flight need fewer."""


class OrderChannel(Protocol):
    """The orders of one group's leader, on the leader or on a member."""

    def send(self, members: range, numbers: npt.NDArray[np.int64], values: torch.Tensor | None) -> None:
        """Send an order from the leader to some members: integers [N], and optionally floats [rows, columns].

        Raises RankLost if a member is lost.
        """

    def receive(self) -> tuple[npt.NDArray[np.int64], torch.Tensor | None]:
        """Wait for the leader's next order and return its integers and floats; raise RankLost if the leader is lost.

        May be called on any thread, but not on two at once.
        """

    def leave(self) -> None:
        """Leave the group: calls in which this rank waits, or others wait for it, end. Works on any thread."""


class OpenOrders(Protocol):
    """Function that chooses how the orders of a group are sent; all ranks call it together."""

    def __call__(self, met: Rendezvous, group: Any, rank: int, size: int) -> OrderChannel:
        """Return the channel of this rank of `group`, which has `size` ranks."""


class Sender:
    """Sends tensors without waiting for their arrival.

    Args:
        connections: the connections to the other ranks.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._sent: deque[tuple[Any, torch.Tensor]] = deque()

    def send(self, tensor: torch.Tensor, ranks: Iterable[int]) -> None:
        """Send a tensor, which must not change afterwards, to each of the ranks; raise RankLost if a connection is lost."""
        with finding_losses():
            for rank in ranks:
                self._sent.append((self._connections.current.send([tensor], rank, 0), tensor))
            while len(self._sent) > _NUM_SENT:
                self._sent.popleft()[0].wait()

    def close(self) -> None:
        """Close the connections: sent tensors that have not arrived are lost."""
        self._connections.close()
        self._sent.clear()


class GlooOrders:
    """Orders over a process group of torch; see OrderChannel.

    Args:
        group: the process group.
    """

    def __init__(self, group: Any) -> None:
        self._connections = Connections(group)
        self._sender = Sender(self._connections)

    def send(self, members: range, numbers: npt.NDArray[np.int64], values: torch.Tensor | None) -> None:
        """See OrderChannel; does not wait."""
        rows, columns = values.shape if values is not None else (0, 0)
        short = torch.zeros(_SHORT, dtype=torch.int64)
        short[:3] = torch.tensor([len(numbers), rows, columns])
        begin = numbers[: _SHORT - 3]
        short[3 : 3 + len(begin)] = torch.from_numpy(begin)
        self._sender.send(short, members)
        if len(numbers) > len(begin):
            self._sender.send(torch.from_numpy(numbers[len(begin) :].copy()), members)
        if values is not None:
            self._sender.send(values.contiguous(), members)

    def receive(self) -> tuple[npt.NDArray[np.int64], torch.Tensor | None]:
        """See OrderChannel."""
        short = self._received(torch.empty(_SHORT, dtype=torch.int64))
        length, rows, columns = short[:3].tolist()
        numbers = torch.empty(length, dtype=torch.int64)
        begin = min(length, _SHORT - 3)
        numbers[:begin] = short[3 : 3 + begin]
        if length > begin:
            numbers[begin:] = self._received(torch.empty(length - begin, dtype=torch.int64))
        values = self._received(torch.empty(rows, columns)) if rows else None
        return numbers.numpy(), values

    def leave(self) -> None:
        """See OrderChannel."""
        self._sender.close()

    def _received(self, tensor: torch.Tensor) -> torch.Tensor:
        """Receive a tensor from the leader and return it."""
        with finding_losses():
            self._connections.current.recv([tensor], 0, 0).wait()
        return tensor


def gloo_orders(met: Rendezvous, group: Any, rank: int, size: int) -> OrderChannel:  # noqa: ARG001 - of OpenOrders
    """See OpenOrders."""
    return GlooOrders(group)
