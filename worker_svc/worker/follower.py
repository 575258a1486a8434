"""Follower: receives a leader's orders on a member of a worker group and runs them on the compute thread, one after another.

A separate thread waits for orders, so that the compute thread stays free for lifecycle calls in between. The thread ends with
the group. A failed order ends the group at once, so that no rank waits for the failed part.
"""

import threading
from collections.abc import Callable

from tetrad.services.errors import Unavailable
from tetrad.services.log import get_logger
from tetrad.worker_svc.core.ranks import Order, Orders, RankLost
from tetrad.worker_svc.worker.compute_thread import ComputeThread

log = get_logger()


class Follower:
    """Runs the orders of one leader.

    Args:
        orders: the leader's orders.
        compute: the compute thread.
        obey: runs an order; called on the compute thread.
    """

    def __init__(self, orders: Orders, compute: ComputeThread, obey: Callable[[Order], None]) -> None:
        self._orders, self._compute, self._obey = orders, compute, obey
        self._has_ended = False
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wait_end(self, timeout_s: float) -> bool:
        """Wait for the end of the thread, which ends after the leader has left the group; return whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        """Queue orders as they arrive, so that the leader does not wait until this rank has run the earlier ones."""
        try:
            while not self._has_ended:
                self._compute.queue(self._obey_now, self._orders.receive())
        except ConnectionError as error:
            log.info("group.ended", reason=str(error))
        finally:
            self._end()

    def _obey_now(self, order: Order) -> None:
        """Run an order on the compute thread, unless the worker has joined another group while the order was queued."""
        if self._has_ended or not self._orders.are_current:
            return
        try:
            self._obey(order)
        except (RankLost, ConnectionError, Unavailable) as error:
            log.warning("order.failed", error=str(error))
            self._end()
        except Exception as error:
            log.exception("order.failed", error=str(error))
            self._end()

    def _end(self) -> None:
        self._has_ended = True
        self._orders.end()
