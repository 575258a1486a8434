"""Follower: takes a leader's orders on a member of a worker group and runs them on the compute thread, one after the other.

A thread of its own waits for orders, so that the compute thread stays free for the lifecycle calls in between. It ends with the
group. An order that fails ends the group at once: no rank waits for a part that never comes.
"""

import threading
from collections.abc import Callable

from tetrad.services.log import get_logger
from tetrad.worker_svc.core.ranks import Order, Orders
from tetrad.worker_svc.worker.compute_thread import ComputeThread

log = get_logger()


class Follower:
    """Follows one leader.

    Args:
        orders: of the leader.
        compute: the compute thread.
        obey: runs an order there.
    """

    def __init__(self, orders: Orders, compute: ComputeThread, obey: Callable[[Order], None]) -> None:
        self._orders, self._compute, self._obey = orders, compute, obey
        self._has_ended = False
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)

    def start(self) -> None:
        """Follow from now on."""
        self._thread.start()

    def wait_end(self, timeout_s: float) -> bool:
        """Return whether the thread has ended, which it does when the leader has left the group."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        """Queue orders as they come, so that the leader need not wait until this rank has run those before."""
        try:
            while not self._has_ended:
                self._compute.queue(self._obey_now, self._orders.receive())
        except ConnectionError as error:
            log.info("group.ended", reason=str(error))
        finally:
            self._end()

    def _obey_now(self, order: Order) -> None:
        """Run an order on the compute thread, unless the worker has joined another group while the order waited."""
        if self._has_ended or not self._orders.are_current:
            return
        try:
            self._obey(order)
        except Exception as error:
            log.exception("order.failed", error=str(error))
            self._end()

    def _end(self) -> None:
        self._has_ended = True
        self._orders.end()
