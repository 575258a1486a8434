"""CallSeats: lets every client call run one sequence before another call runs further ones.

Called by the scheduler for each plan. Preempts rows of the call that runs the most; a call that got a row this way is not
preempted for another one, since it runs a single row. Knows no budgets and no time.
"""

from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.kv_cache.manager import KVCacheManager
from tetrad.engine_core_svc.scheduler.request_states import RequestStates

_MAX_LOOKED_AT = 64
"""Maximum number of waiting calls that one plan examines, so that its cost does not grow with the queue; and of calls none of
which was served, if that many others stand before them."""


class CallSeats:
    """Preempts rows for calls that run none.

    Args:
        states: all unfinished requests.
        kv_cache: their block tables.
        max_num_seqs: maximum number of rows in a step.
    """

    def __init__(self, states: RequestStates, kv_cache: KVCacheManager, max_num_seqs: int) -> None:
        self._states, self._kv_cache, self._max_num_seqs = states, kv_cache, max_num_seqs

    def make_room(self) -> int:
        """If all seats are taken, preempt one row for each waiting call that runs none; return the number of preempted rows."""
        calls, waiting = self._states.calls, self._states.waiting
        if len(self._states.running) < self._max_num_seqs or not self._has_further_rows:
            return 0
        num_before = self._states.num_preemptions
        for number in range(2 * _MAX_LOOKED_AT):
            first = waiting.peek(further=number < _MAX_LOOKED_AT)
            if first is None:
                break
            waiting.pass_over(first)
            if not calls.num_running(first.call) and not first.num_placeholders and not first.is_held:
                victim = self._last_of_largest_call(first)
                if victim is None:
                    break
                self._states.preempt(victim)
        waiting.look_again()
        return self._states.num_preemptions - num_before

    def preempt_idle_row(self, request: Request, step_id: int) -> bool:
        """Preempt a row that this step does not plan, if the request's call runs none and lacks blocks.

        Returns whether a row was preempted. A row that waits for its media would be admitted again at once.
        """
        if self._states.calls.num_running(request.call) or not self._has_further_rows:
            return False
        victim = self._last_of_largest_call(request)
        if victim is None or victim.last_step_id == step_id or victim.awaits_media:
            return False
        if self._kv_cache.blocks_missing(request) <= 0:
            return False
        self._states.preempt(victim)
        return True

    @property
    def _has_further_rows(self) -> bool:
        return len(self._states.running) > self._states.calls.num_running_calls

    def _last_of_largest_call(self, first: Request) -> Request | None:
        """Return the last row, no more urgent than `first`, of the call that runs the most; None if each call runs one."""
        calls = self._states.calls
        rows = (each for each in reversed(self._states.running) if each.priority <= first.priority)
        victim = max(rows, key=lambda each: calls.num_running(each.call), default=None)
        return None if victim is None or calls.num_running(victim.call) < 2 else victim
