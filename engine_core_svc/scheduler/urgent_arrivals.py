"""UrgentArrivals: preempts the least urgent requests for a waiting request that is more urgent.

Called by the scheduler for each plan, if requests are served by priority. Knows no budgets and no time.
"""

from collections.abc import Callable

from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.kv_cache.manager import KVCacheManager
from tetrad.engine_core_svc.scheduler.request_states import RequestStates


class UrgentArrivals:
    """Preempts for the first waiting request.

    Args:
        states: all unfinished requests.
        kv_cache: their block tables.
        max_num_seqs: maximum number of rows in a step.
        is_ready: returns whether nothing but room keeps a waiting request from computing tokens.
    """

    def __init__(
        self, states: RequestStates, kv_cache: KVCacheManager, max_num_seqs: int, is_ready: Callable[[Request], bool]
    ) -> None:
        self._states, self._kv_cache, self._max_num_seqs, self._is_ready = states, kv_cache, max_num_seqs, is_ready

    def make_room(self) -> bool:
        """Preempt the least urgent requests if the first waiting request is more urgent and can run then.

        Returns whether requests were preempted. They wait behind that request, so they are not preempted for it a second time.
        """
        first, running = self._states.waiting.peek(), self._states.running
        if first is None or self._could_run(first):
            return False
        victims = [request for request in running if request.priority < first.priority]
        reclaimable = sum(len(self._kv_cache.blocks_of(victim)) for victim in victims)
        if not victims or self._kv_cache.blocks_missing(first) > reclaimable or not self._is_ready(first):
            return False
        while running and running[-1].priority < first.priority and not self._could_run(first):
            self._states.preempt(running[-1])
        return True

    def _could_run(self, request: Request) -> bool:
        return len(self._states.running) < self._max_num_seqs and self._kv_cache.blocks_missing(request) <= 0
