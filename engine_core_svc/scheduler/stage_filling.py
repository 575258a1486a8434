"""StageFilling: decides which requests a plan may contain if the model's layers are on several stages of a pipeline.

Called by the scheduler for each plan and each result. A stage computes one step while the next stage computes the step before
it. So steps in flight have different requests: each plan gets its part of them. A request whose next token has not arrived is
planned again once its step is the oldest in flight, if as many steps as stages are in flight or nothing else can be planned.
A chunk of a prompt waits for no token, so it may be in every plan. It counts as no row: otherwise the prompts that are first in
order would take the rows of the requests that decode after them. For the same reason, a plan with drafts, which is alone in
flight, may contain all requests: otherwise the next one would have the first part of them again.
"""

from collections import deque
from collections.abc import Iterable

from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.scheduler.budget import Rows


class StageRows:
    """The rows of a plan that contains a part of the requests.

    Args:
        most_running, most: maximum number of rows of running requests, and of all requests.
        oldest: id of the step whose requests may be planned again before its result arrives; None: no such step.
    """

    def __init__(self, most_running: int, most: int, oldest: int | None) -> None:
        self._most_running, self._most, self._oldest = most_running, most, oldest
        self._num_rows = 0

    @property
    def admits(self) -> bool:
        """See Rows."""
        return self._num_rows < self._most

    def has_room(self, request: Request) -> bool:
        """See Rows."""
        is_known = not request.num_placeholders or request.last_step_id == self._oldest
        return is_known and self._num_rows < self._most_running

    def spend(self, request: Request) -> None:
        """See Rows."""
        self._num_rows += request.num_placeholders > 0


class StageFilling:
    """Divides requests among the steps in flight.

    Args:
        num_stages: number of stages of the pipeline, 2 or more.
    """

    def __init__(self, num_stages: int) -> None:
        self.num_stages = num_stages
        self._in_flight: deque[int] = deque()

    def rows(self, running: Iterable[Request], num_waiting: int, max_num_seqs: int) -> Rows:
        """See StageFillings."""
        requests = list(running)
        has_others = num_waiting > 0 or any(not request.num_placeholders and not request.is_held for request in requests)
        may_repeat = len(self._in_flight) >= self.num_stages or not has_others
        return StageRows(
            self._part(len(requests)),
            self._part(min(len(requests) + num_waiting, max_num_seqs)),
            self._in_flight[0] if self._in_flight and may_repeat else None,
        )

    def note_planned(self, step_id: int) -> None:
        """See StageFillings."""
        self._in_flight.append(step_id)

    def note_returned(self, step_id: int) -> None:
        """See StageFillings."""
        while self._in_flight and self._in_flight[0] <= step_id:
            self._in_flight.popleft()

    def forget_steps(self) -> None:
        """See StageFillings."""
        self._in_flight.clear()

    def _part(self, num_requests: int) -> int:
        return -(-num_requests // self.num_stages)
