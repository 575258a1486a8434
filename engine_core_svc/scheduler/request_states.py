"""RequestStates: all unfinished requests, and their transitions: waiting for a grammar, waiting, running with blocks.

Owned by the scheduler, which says when a request moves, as results do; here is what a move entails. The worker is told of those
that run no more by the next plan. Knows nothing of budgets and plans.
"""

from collections.abc import Callable

from tetrad.engine_core_svc.core.request import Request, RequestStatus
from tetrad.engine_core_svc.kv_cache.manager import KVCacheManager
from tetrad.engine_core_svc.scheduler.deferred_frees import DeferredFrees
from tetrad.engine_core_svc.scheduler.policy import OrderKey, RequestQueue, RequestSet
from tetrad.engine_core_svc.scheduler.running import RunningList
from tetrad.engine_core_svc.structured_output.grammar_state import GrammarState
from tetrad.engine_core_svc.structured_output.grammars import Grammars


class RequestStates:
    """The requests of one scheduler.

    Args:
        key: the order in which they are served.
        kv_cache: takes blocks back.
        grammars: of the constrained requests.

    Attributes:
        requests: all of them, by key.
        waiting: those that could run if there were room.
        running: those that hold blocks.
        deferred_frees: blocks of ended requests that a plan in flight still names.
        num_preemptions: since start.
    """

    def __init__(self, key: Callable[[Request], OrderKey], kv_cache: KVCacheManager, grammars: Grammars) -> None:
        self.requests: dict[int, Request] = {}
        self.waiting = RequestQueue(key)
        self.running = RunningList(key)
        self.deferred_frees = DeferredFrees(kv_cache.release)
        self.num_preemptions = 0
        self._kv_cache, self._grammars = kv_cache, grammars
        self._waiting_for_grammar = RequestSet()
        self._removed_keys: list[int] = []

    @property
    def num_waiting(self) -> int:
        """Requests that do not run, those that wait for their grammars included."""
        return len(self.waiting) + len(self._waiting_for_grammar)

    @property
    def num_waiting_for_grammars(self) -> int:
        """Those of them that wait for their grammars."""
        return len(self._waiting_for_grammar)

    @property
    def num_waiting_tokens(self) -> int:
        """Tokens of those requests, as many as they had when they began to wait."""
        return self.waiting.num_tokens + self._waiting_for_grammar.num_tokens

    @property
    def in_flight(self) -> list[Request]:
        """Requests that a plan names whose result has not come."""
        return [request for request in self.requests.values() if request.last_step_id > self.deferred_frees.last_returned_step]

    def add(self, request: Request) -> None:
        """Take a request over; it waits from now on, in the queue unless its grammar is still to come."""
        self.requests[request.key] = request
        if request.status is RequestStatus.WAITING_FOR_GRAMMAR:
            self._waiting_for_grammar.add(request)
        else:
            self.waiting.add(request)

    def grammar_ready(self, request: Request, state: GrammarState) -> None:
        """Let a request that waited for its grammar into the queue, at the place of its arrival."""
        self._waiting_for_grammar.remove(request)
        request.move_to(RequestStatus.WAITING)
        self._grammars.add(request, state)
        self.waiting.add(request)

    def start(self, request: Request) -> None:
        """Let a waiting request run, with the blocks that it was given."""
        self.waiting.remove(request)
        request.move_to(RequestStatus.RUNNING)
        self.running.add(request)

    def preempt(self, request: Request) -> None:
        """Take a running request's blocks and put it back in line; its tokens stay.

        The blocks may be handed out at once even if a plan in flight names them: workers run plans in order, so whatever
        that plan still writes is overwritten by the plan that gets the blocks.
        """
        self.running.remove(request)
        request.move_to(RequestStatus.PREEMPTED)
        self._kv_cache.release(request.block_ids)
        request.restart()
        request.num_preemptions += 1
        self.num_preemptions += 1
        self._removed_keys.append(request.key)
        self.waiting.add(request)

    def preempt_all(self) -> None:
        """Put every running request back in line, order kept."""
        while self.running:
            self.preempt(self.running[-1])

    def finish(self, request: Request, status: RequestStatus) -> None:
        """End a request and give its blocks back, behind the plan in flight that still names them."""
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
            self._removed_keys.append(request.key)
        elif request.status is RequestStatus.WAITING_FOR_GRAMMAR:
            self._waiting_for_grammar.remove(request)
        else:
            self.waiting.remove(request)
        request.move_to(status)
        self._grammars.remove(request)
        del self.requests[request.key]
        self.deferred_frees.add(request.last_step_id, request.block_ids)
        request.block_ids = []

    def take_removed_keys(self) -> list[int]:
        """Return the keys of those that have stopped running since the last call."""
        removed, self._removed_keys = self._removed_keys, []
        return removed

    def forget_worker(self) -> None:
        """The worker is gone with all blocks' content and all results in flight: everyone waits, order kept."""
        self.preempt_all()
        for request in self.requests.values():
            request.num_placeholders = 0
            request.last_step_id = -1
        self._removed_keys.clear()
        self.deferred_frees.clear()
