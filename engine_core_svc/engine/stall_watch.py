"""StallWatch: reports that requests wait although no step runs, and names the stuck request and the reason.

Called by the engine after each step, on the event loop. While steps run it costs one comparison. The time is running time
(services/timers/running_time.py): a process that is stopped and continued reports nothing.
"""

from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.engine.condition import Condition
from tetrad.engine_core_svc.scheduler.scheduler import Scheduler
from tetrad.engine_core_svc.sessions.outbox import Notice
from tetrad.engine_core_svc.sessions.sessions import Session, Sessions
from tetrad.services.timers.running_time import Watchdog


class StallWatch:
    """Watches one engine; made on the event loop that runs it.

    Args:
        scheduler, sessions, condition: those of the engine.
        timeout_s: seconds that requests may wait while no step is planned.
    """

    def __init__(self, scheduler: Scheduler, sessions: Sessions, condition: Condition, *, timeout_s: float) -> None:
        self._scheduler, self._sessions, self._condition = scheduler, sessions, condition
        self._timeout_s = timeout_s
        self._watchdog = Watchdog(timeout_s, self._report)
        self._is_standing = False
        self._problem = ""

    def note_step(self, *, is_standing: bool) -> None:
        """Note whether requests make no progress after a step: they could be planned, and no plan is in flight."""
        if is_standing == self._is_standing:
            return
        self._is_standing = is_standing
        if is_standing:
            self._watchdog.watch()
            return
        self._watchdog.rest()
        if self._problem:
            self._problem = ""
            self._condition.set_good()
            self._sessions.broadcast(Notice("RECOVERED", "Requests make progress again."))

    def notify(self, session: Session) -> None:
        """Send the notice of a stall to a session that opens during it."""
        if self._problem:
            session.outbox.put(self._notice())

    def rest(self) -> None:
        """Stop watching until the next step: there is no worker, and Recovery or Sleeper sets the condition."""
        self._is_standing, self._problem = False, ""
        self._watchdog.rest()

    def close(self) -> None:
        """End the watch."""
        self._watchdog.close()

    def _report(self) -> None:
        request, why = find_stuck(self._scheduler)
        name = "Requests wait" if request is None else f"Request {request.request_id!r} of {request.num_tokens} tokens waits"
        self._problem = f"{name}, and no step was planned for {self._timeout_s:g} s: {why}"
        self._condition.set_problem(self._problem)
        self._sessions.broadcast(self._notice())

    def _notice(self) -> Notice:
        return Notice("STALLED", self._problem)


def find_stuck(scheduler: Scheduler) -> tuple[Request | None, str]:
    """Return the request that must run next and the reason why it cannot; None if no request may run."""
    first = next(iter(scheduler.running), None) or scheduler.waiting.peek()
    if first is None:
        return None, "each of them is held back until a request suspected of crashing the worker has ended."
    if first.is_held:
        return first, "the mask of its structured output is not computed."
    if first.num_placeholders:
        return first, "a token that was sampled for it did not come back."
    limits, kv_cache = scheduler.limits, scheduler.kv_cache
    remaining = first.num_tokens - kv_cache.find_prefix(first).num_tokens
    if not limits.enable_chunked_prefill and remaining > limits.max_num_batched_tokens:
        return first, (
            f"{remaining} tokens are left to compute, a step has {limits.max_num_batched_tokens} (max_num_batched_tokens), and "
            "chunked prefill is off."
        )
    if kv_cache.blocks_missing(first) > 0:
        pool = kv_cache.pool
        return first, (
            f"it needs {kv_cache.blocks_for(first.num_tokens)} KV blocks; {pool.num_free} of {pool.num_blocks - 1} are free."
        )
    return first, "the scheduler plans no step for it, although KV blocks and tokens of a step are free."
