"""Rank channels: connections that carry partial sums, orders and hidden states between the ranks of a group.

Owned by the device for the lifetime of the process; a rebuilt group replaces the connections inside. Orders and hidden states
have separate connections: a member waits for orders without a limit, whereas waiting for a tensor has a timeout. Sending hidden
states does not block, so a stage computes the next step while its hidden states are in transfer. On GPUs, stages have other
connections.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from tetrad.services.errors import one_line
from tetrad.worker_svc.core.ranks import GroupPlace, Order, RankLost, Shard, Stage
from tetrad.worker_svc.layers.collectives import Collectives, Connections, finding_losses
from tetrad.worker_svc.layers.order_channel import OpenOrders, OrderChannel, Sender, gloo_orders
from tetrad.worker_svc.layers.rendezvous import LIFE_S, STEP_TIMEOUT_S, Rendezvous

T = TypeVar("T")


class Arrival:
    """A tensor that is being received from another rank.

    Args:
        tensor: the tensor that the transfer fills.
        work: torch's handle of the transfer; `wait` is called on it once.
    """

    def __init__(self, tensor: torch.Tensor, work: Any) -> None:
        self._tensor, self._work, self._is_lost = tensor, work, False
        self._once = threading.Lock()  # guards `_work`: torch would wait for a second tensor

    def wait(self) -> torch.Tensor:
        """Wait for the tensor and return it; safe on any thread. Raises RankLost if the transfer fails."""
        with self._once:
            if self._is_lost:
                raise RankLost("A rank's tensor did not come: its connection is lost.")
            if self._work is not None:
                try:
                    with finding_losses():
                        self._work.wait()
                except RankLost:
                    self._is_lost = True
                    raise
                finally:
                    self._work = None  # the handle keeps connections open, and a traceback may keep this object
        return self._tensor


class RankChannels:
    """The connections of one rank.

    Args:
        shard, stage: the place of this rank.
        sums: the sums with the other shards of the stage.
        open_orders: chooses how the ranks send orders.

    Attributes:
        sums: as above.
        epoch: the epoch of the last joined group; 0: none.
    """

    def __init__(self, shard: Shard, stage: Stage, sums: Collectives, open_orders: OpenOrders = gloo_orders) -> None:
        self.shard, self.stage, self.sums, self._open_orders = shard, stage, sums, open_orders
        self.epoch = 0
        self._ending = threading.Lock()  # guards the end of a group: another thread may end it while the next one is joined
        self._rank, self._size = stage.index * shard.size + shard.index, stage.size * shard.size
        self._orders: OrderChannel | None = None
        self._hidden: Connections | None = None
        self._sender: Sender | None = None
        self._met: Rendezvous | None = None

    @property
    def is_leader(self) -> bool:
        """Whether this rank is the leader, which samples and returns results."""
        return self._rank == 0

    @property
    def option(self) -> str:
        """The name and value of the option that requires several ranks, for messages."""
        return GroupPlace(self.shard, self.epoch, (), stage=self.stage).option

    def connect(self, place: GroupPlace) -> None:
        """Connect to the other ranks, after closing the connections of an earlier epoch.

        Raises:
            DeadlineExceeded: a rank did not join in time.
            Unavailable: the ranks could not connect.
        """
        with self._ending:
            self._close()
            self.epoch = place.epoch
        self._met = met = Rendezvous(place)
        try:
            if self.shard.size > 1:
                self.sums.connect(met, f"sums-{self.stage.index}", STEP_TIMEOUT_S)
            if self.stage.size > 1:
                self._connect_stages(met)
            group = met.connect("orders", self._rank, self._size, LIFE_S)
            self._orders = self._open_orders(met, group, self._rank, self._size)
        except BaseException:
            self.disconnect()
            raise

    def disconnect(self, epoch: int | None = None) -> None:
        """Close the connections: the pending calls of other ranks fail.

        Args:
            epoch: the epoch of the group that ends; connections of another epoch stay open. None: any epoch.
        """
        with self._ending:
            if epoch in (None, self.epoch):
                self._close()

    def _close(self) -> None:
        self.sums.disconnect()
        self._disconnect_stages()
        if self._orders is not None:
            self._orders.leave()
        if self._met is not None:
            self._met.close()
        self._met = self._orders = None

    def _connect_stages(self, met: Rendezvous) -> None:
        """Connect to the other stages of a pipeline; every rank calls this."""
        self._hidden = Connections(met.connect("hidden", self._rank, self._size, STEP_TIMEOUT_S))
        self._sender = Sender(self._hidden)

    def _disconnect_stages(self) -> None:
        """Close the connections to the other stages, if there are any."""
        if self._sender is not None:
            self._sender.close()
        self._hidden = self._sender = None

    def send_order(
        self,
        numbers: npt.NDArray[np.int64],
        values: torch.Tensor | None = None,
        *,
        to_stage: bool = False,
        num_readers: int | None = None,
    ) -> None:
        """Send an order from the leader to the members: integers, and optionally a matrix of floats.

        Args:
            numbers, values: the order.
            to_stage: send only to the other shards of the leader's stage, instead of to all ranks.
            num_readers: number of ranks, the first ones, that get the floats; None: all.
        """
        size = self.shard.size if to_stage else self._size
        end = size if num_readers is None or values is None else min(num_readers, size)
        self._send_order(range(1, end), numbers, values)
        self._send_order(range(max(end, 1), size), numbers, None)

    def _send_order(self, members: range, numbers: npt.NDArray[np.int64], values: torch.Tensor | None) -> None:
        if members:
            self._joined(self._orders).send(members, numbers, values)

    def receive_order(self, epoch: int) -> tuple[npt.NDArray[np.int64], torch.Tensor | None]:
        """Wait for the leader's next order in this group and return its integers and floats.

        Callable on any thread, by one at a time. Raises ConnectionError if the group has ended.
        """
        orders = self._joined(self._orders if epoch == self.epoch else None)
        try:
            return orders.receive()
        except RankLost as error:
            raise ConnectionError(f"The leader's connection is lost: {one_line(error)}.") from error

    def send_hidden(self, hidden: torch.Tensor) -> None:
        """Send hidden states [T, hidden] of this stage to the next stage, or from the last stage to the leader.

        Each row may have further values behind the hidden state; see StageTaps.
        """
        if not self.stage.is_last:
            self._joined(self._sender).send(hidden.contiguous(), [self._rank + self.shard.size])
        elif self.shard.index == 0:
            self._joined(self._sender).send(hidden.contiguous(), [0])

    def expect_hidden(self, num_tokens: int, width: int) -> Arrival:
        """Start to receive rows [T, width] from the previous stage; on the leader, from the last stage. See send_hidden."""
        connections = self._joined(self._hidden)
        source = self._size - self.shard.size if self.is_leader else self._rank - self.shard.size
        tensor = torch.empty(num_tokens, width)
        with finding_losses():
            return Arrival(tensor, connections.current.recv([tensor], source, 0))

    @staticmethod
    def _joined(connection: T | None) -> T:
        """Return a connection of the current group; raise ConnectionError if there is none."""
        if connection is None:
            raise ConnectionError("The rank has left its group.")
        return connection


class LeaderOrders:
    """The Orders of one group's leader.

    Args:
        ranks: the connections to the other ranks; the member has joined the group.
        decode: returns the order of received integers and floats.
    """

    def __init__(self, ranks: RankChannels, decode: Callable[[npt.NDArray[np.int64], torch.Tensor | None], Order]) -> None:
        self._ranks, self._decode, self._epoch = ranks, decode, ranks.epoch

    @property
    def are_current(self) -> bool:
        """See Orders."""
        return self._ranks.epoch == self._epoch

    def receive(self) -> Order:
        """See Orders."""
        return self._decode(*self._ranks.receive_order(self._epoch))

    def end(self) -> None:
        """See Orders."""
        self._ranks.disconnect(self._epoch)
