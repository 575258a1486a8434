"""RequestStates: all unfinished requests, and their transitions between waiting states and running.

Implements the transitions and their side effects; the scheduler and the results decide when. The next plan lists the requests
that no longer run. Knows nothing of budgets and plans.
"""

from tetrad.engine_core_svc.core.request import Request, RequestStatus
from tetrad.engine_core_svc.kv_cache.manager import KVCacheManager
from tetrad.engine_core_svc.media.planning import Media, NoMedia
from tetrad.engine_core_svc.scheduler.adapters import Adapters, NoAdapters
from tetrad.engine_core_svc.scheduler.call_counts import CallCounts
from tetrad.engine_core_svc.scheduler.deferred_frees import DeferredFrees
from tetrad.engine_core_svc.scheduler.policy import Order, RequestQueue, RequestSet, RunningList
from tetrad.engine_core_svc.structured_output.grammar_state import GrammarState
from tetrad.engine_core_svc.structured_output.grammars import Grammars


class RequestStates:
    """The requests of one scheduler.

    Args:
        order: the order of service.
        kv_cache: frees the blocks.
        grammars: grammars of the constrained requests.
        adapters: decides which requests may join the queue.
        media: the media of the requests.

    Attributes:
        requests: all unfinished requests, by key.
        waiting: the queue: requests that could run if there were room.
        running: requests that hold blocks.
        calls: number of requests of each client call.
        deferred_frees: blocks of ended requests that a plan in flight still names.
        num_preemptions: number of preemptions since start.
    """

    def __init__(
        self,
        order: Order,
        kv_cache: KVCacheManager,
        grammars: Grammars,
        adapters: Adapters | NoAdapters,
        media: Media | NoMedia,
    ) -> None:
        self.requests: dict[int, Request] = {}
        self.waiting = RequestQueue(order)
        self.running = RunningList(order.key)
        self.calls = CallCounts()
        self.deferred_frees = DeferredFrees(kv_cache.release)
        self.num_preemptions = 0
        self._kv_cache, self._grammars, self._adapters, self._media = kv_cache, grammars, adapters, media
        self._waiting_for_grammar, self._waiting_for_remote_kvs = RequestSet(), RequestSet()
        self._waiting_for_lora = RequestSet()
        adapters.bind(self.lora_ready, lambda: self.deferred_frees.last_returned_step)
        self._removed_keys: list[int] = []

    @property
    def num_waiting(self) -> int:
        """The number of requests that do not run, including those that wait for grammars, adapters or remote blocks."""
        return self.num_waiting_for_capacity + self.num_preparing

    @property
    def num_waiting_for_capacity(self) -> int:
        """The number of requests that are queued or wait for remote blocks."""
        return len(self.waiting) + len(self._waiting_for_remote_kvs)

    @property
    def num_waiting_for_grammars(self) -> int:
        """The number of requests that wait for their grammars."""
        return len(self._waiting_for_grammar)

    @property
    def num_waiting_for_adapters(self) -> int:
        """The number of requests that wait for their adapters."""
        return len(self._waiting_for_lora)

    @property
    def num_preparing(self) -> int:
        """The number of requests that wait for their grammars or adapters."""
        return self.num_waiting_for_grammars + self.num_waiting_for_adapters

    @property
    def num_waiting_tokens(self) -> int:
        """The number of tokens of all waiting requests, as of the time when they began to wait."""
        parked = (self._waiting_for_grammar, self._waiting_for_lora, self._waiting_for_remote_kvs)
        return self.waiting.num_tokens + sum(each.num_tokens for each in parked)

    @property
    def in_flight(self) -> list[Request]:
        """The requests that a plan in flight names, and those that wait for media which are being encoded."""
        last_returned, waiting = self.deferred_frees.last_returned_step, self._media.waiting_keys()
        return [each for each in self.requests.values() if each.last_step_id > last_returned or each.key in waiting]

    def add(self, request: Request) -> None:
        """Add a request: to the queue, or to those that wait for their grammar or adapter."""
        self.requests[request.key] = request
        self.calls.add(request)
        self._adapters.begin(request)
        if request.status is RequestStatus.WAITING_FOR_GRAMMAR:
            self._waiting_for_grammar.add(request)
        else:
            self._enqueue(request)

    def _enqueue(self, request: Request) -> None:
        """Put a waiting request into the queue, or let it wait for its adapter."""
        if self._adapters.admits(request):
            self.waiting.add(request)
            return
        request.move_to(RequestStatus.WAITING_FOR_LORA)
        self._waiting_for_lora.add(request)
        self._adapters.park(request)

    def lora_ready(self, request: Request) -> None:
        """Put a request that waited for its adapter into the queue, at the place of its arrival."""
        self._waiting_for_lora.remove(request)
        request.move_to(RequestStatus.WAITING)
        self.waiting.add(request)

    def grammar_ready(self, request: Request, state: GrammarState) -> None:
        """Put a request that waited for its grammar into the queue, at the place of its arrival."""
        self._waiting_for_grammar.remove(request)
        request.move_to(RequestStatus.WAITING)
        self._grammars.add(request, state)
        self._enqueue(request)

    def await_remote_kvs(self, request: Request) -> None:
        """Take a request out of the queue until its blocks have arrived from another engine core."""
        self.waiting.take(request)
        request.move_to(RequestStatus.WAITING_FOR_REMOTE_KVS)
        self._waiting_for_remote_kvs.add(request)

    def remote_kvs_ready(self, request: Request) -> None:
        """Put a request that waited for blocks back into the queue, at the place of its arrival."""
        self._waiting_for_remote_kvs.remove(request)
        request.move_to(RequestStatus.WAITING)
        self.waiting.add(request)

    def start(self, request: Request) -> None:
        """Mark a waiting request as running; its blocks are allocated already."""
        self.waiting.take(request)
        request.move_to(RequestStatus.RUNNING)
        self.running.add(request)
        self.calls.start(request)

    def preempt(self, request: Request) -> None:
        """Free a running request's blocks and put it back in the queue; its tokens stay.

        The blocks may be allocated again at once even if a plan in flight names them: workers run plans in order, so the plan
        that gets the blocks overwrites everything that the earlier plan writes.
        """
        self.running.remove(request)
        self._stop(request)
        request.move_to(RequestStatus.PREEMPTED)
        self._kv_cache.release(self._kv_cache.blocks_of(request))
        self._media.stop(request)
        request.restart()
        request.num_preemptions += 1
        self.num_preemptions += 1
        self._removed_keys.append(request.key)
        self.waiting.add(request)

    def preempt_all(self) -> None:
        """Preempt every running request; the order stays."""
        while self.running:
            self.preempt(self.running[-1])

    def finish(self, request: Request, status: RequestStatus) -> None:
        """End a request; free its blocks once no plan in flight names them and no other engine core will read them."""
        before = request.status
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
            self._stop(request)
            self._removed_keys.append(request.key)
        elif request.status is RequestStatus.WAITING_FOR_GRAMMAR:
            self._waiting_for_grammar.remove(request)
        elif request.status is RequestStatus.WAITING_FOR_LORA:
            self._waiting_for_lora.remove(request)
        elif request.status is RequestStatus.WAITING_FOR_REMOTE_KVS:
            self._waiting_for_remote_kvs.remove(request)
        else:
            self.waiting.remove(request)
        request.move_to(status)
        self._grammars.remove(request)
        self._media.end(request)
        del self.requests[request.key]
        self.calls.finish(request)
        self._give_back(request)
        request.block_tables = []
        self._adapters.end(request, before)

    def _stop(self, request: Request) -> None:
        """Count a request as not running any more."""
        self.calls.stop(request)
        if not self.calls.num_running(request.call):
            self.waiting.note_idle(request.call)

    def _give_back(self, request: Request) -> None:
        blocks = self._kv_cache.blocks_of(request)
        if self._kv_cache.connector.request_finished(request, blocks):
            self.deferred_frees.keep(request.key, request.last_step_id, blocks)
        else:
            self.deferred_frees.add(request.last_step_id, blocks)

    def take_removed_keys(self) -> list[int]:
        """Return the keys of requests that have stopped running since the last call."""
        removed, self._removed_keys = self._removed_keys, []
        return removed

    def forget_worker(self) -> None:
        """Let all requests wait, in their order: the worker is lost, with its blocks and all results in flight."""
        self.preempt_all()
        for request in self.requests.values():
            request.num_placeholders = 0
            request.last_step_id = -1
        self._removed_keys.clear()
        self.deferred_frees.clear()
        self._adapters.forget_worker()
        self._await_adapters()

    def isolate(self, key: int | None) -> None:
        """Let only the request with this key start from now on, or none if there is no such request; None: all again.

        Its adapter gets the next place: an adapter whose requests are queued, and must not start, would keep it for ever.
        """
        if key is not None:
            for request in [request for request in self.running if request.key != key]:
                self.preempt(request)
        self.waiting.only = key
        isolated = None if key is None else self.requests.get(key)
        if isolated is not None and isolated.status is RequestStatus.WAITING_FOR_LORA:
            self._await_adapters()
        self._adapters.prefer(None if isolated is None else isolated.adapter, holds_others=key is not None)

    def _await_adapters(self) -> None:
        """Let all queued requests wait for their adapters again."""
        requests = [request for request in self.waiting if request.adapter is not None]
        # Those without a place in the queue first: otherwise each would get the place of the sequence of its call before it.
        for request in sorted(requests, key=lambda each: each.place is not None):
            self.waiting.remove(request)
            request.move_to(RequestStatus.WAITING_FOR_LORA)
            self._waiting_for_lora.add(request)
            self._adapters.retreat(request)
