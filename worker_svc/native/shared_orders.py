"""Shared orders: the leader's orders to members on the same machine, through shared memory; see src/shared_orders.h."""

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tetrad.services.log import get_logger
from tetrad.worker_svc.layers.order_channel import GlooOrders, OrderChannel
from tetrad.worker_svc.layers.rendezvous import STEP_TIMEOUT_S, Rendezvous
from tetrad.worker_svc.native.shared_memory import SharedMemory, open_memory

log = get_logger()

_HEAD = 3
"""Integers before an order: the number of its integers, and the rows and columns of its floats."""


class SharedOrders:
    """Orders through shared memory; see OrderChannel.

    Args:
        library: the native kernels.
        memory: the memory that the ranks share.
    """

    def __init__(self, library: ctypes.CDLL, memory: SharedMemory) -> None:
        self._library, self._memory = library, memory

    def send(self, members: range, numbers: npt.NDArray[np.int64], values: torch.Tensor | None) -> None:
        """See OrderChannel; waits while a member has not read the last 2 MiB."""
        shape = (0, 0) if values is None else values.shape
        head = np.concatenate([[len(numbers), *shape], numbers]).astype(np.int64, copy=False)
        values = None if values is None else values.contiguous()
        for member in members:
            self._write(member, head.ctypes.data, head.nbytes)
            if values is not None:
                self._write(member, values.data_ptr(), values.nbytes)

    def receive(self) -> tuple[npt.NDArray[np.int64], torch.Tensor | None]:
        """See OrderChannel."""
        head = self._read(np.empty(_HEAD, np.int64))
        num_numbers, rows, columns = head.tolist()
        numbers = self._read(np.empty(num_numbers, np.int64))
        values = torch.from_numpy(self._read(np.empty((rows, columns), np.float32))) if rows else None
        return numbers, values

    def leave(self) -> None:
        """See OrderChannel."""
        self._library.tetrad_orders_leave(self._memory.reference)

    def _write(self, member: int, address: int, num_bytes: int) -> None:
        self._memory.check(self._library.tetrad_orders_write(self._memory.reference, member, address, num_bytes))

    def _read(self, into: npt.NDArray[Any]) -> npt.NDArray[Any]:
        self._memory.check(self._library.tetrad_orders_read(self._memory.reference, into.ctypes.data, into.nbytes))
        return into


class OrdersOfMachine:
    """Opens the orders of a group: shared memory if all its ranks are on this machine, otherwise gloo. See OpenOrders.

    Args:
        library: the native kernels.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def __call__(self, met: Rendezvous, group: Any, rank: int, size: int) -> OrderChannel:
        """See OpenOrders; all ranks choose the same kind of orders."""
        size_bytes = self._library.tetrad_orders_size_bytes(size)
        memory = open_memory(self._library, met, "orders", group, (rank, size), size_bytes, STEP_TIMEOUT_S)
        log.info("orders.gloo" if memory is None else "orders.shared", ranks=size)
        return GlooOrders(group) if memory is None else SharedOrders(self._library, memory)
