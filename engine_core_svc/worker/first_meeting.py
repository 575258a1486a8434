"""First meeting: limits how long an engine core waits for the ranks of its group to meet for the first time.

The engine core waits for a single worker without a limit, so that services may start in any order. A group has an address for
each rank, and a wrong address is more likely than a late worker: after the limit, the engine core ends with the reason. Later
meetings have the limit of recovery.
"""

from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc

from tetrad.engine_core_svc.worker.rank_link import error_of
from tetrad.services.errors import DeadlineExceeded, Unavailable
from tetrad.services.timers.running_time import RunningTimer

T = TypeVar("T")


class FirstMeeting:
    """The attempts of a group to meet, until one succeeds.

    Args:
        num_ranks: number of ranks of the group; a single rank has no limit.
        timeout_s: limit in seconds of running time, from the first attempt on.
    """

    def __init__(self, num_ranks: int, timeout_s: float) -> None:
        self._num_ranks, self._timeout_s = num_ranks, timeout_s
        self._timer: RunningTimer | None = None
        self._is_overdue = False
        self._has_met = num_ranks == 1

    async def within_limit(self, attempt: Coroutine[Any, Any, T]) -> T:
        """Return an attempt's result. Raises DeadlineExceeded if no attempt has succeeded and the limit has passed."""
        if not self._has_met and self._timer is None:
            self._timer = RunningTimer(self._timeout_s, self._expire)
        try:
            result = await attempt
        except (Unavailable, grpc.RpcError) as error:
            reason = error if isinstance(error, Unavailable) else error_of(error)
            if not self._is_overdue or not isinstance(reason, Unavailable):
                raise
            raise DeadlineExceeded(
                f"The {self._num_ranks} ranks of the group have not met within {self._timeout_s:g} s: {reason.message}"
            ) from error
        self._has_met = True
        self.close()
        return result

    def close(self) -> None:
        """Stop the timer."""
        self._is_overdue = False
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self) -> None:
        self._is_overdue = not self._has_met
