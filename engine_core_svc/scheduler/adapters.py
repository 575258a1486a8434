"""Adapters: decides which LoRA adapters requests may run with now, and which of them the worker keeps.

Called by the request states when a request would join the queue, and when it ends. At most `max_loras` adapters are active:
requests of others wait (WAITING_FOR_LORA) and never reach the queue, so planning is the same with and without adapters. An
adapter stays active while its requests are queued or run; the next place goes to the adapter whose request has waited longest.
At most `max_cpu_loras` adapters are on the worker; the least recently used inactive one is evicted. The engine loads adapters
(engine/adapter_loading.py). Knows nothing of plans, files or workers.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tetrad.engine_core_svc.core.adapter import Adapter, LoraRef
from tetrad.engine_core_svc.core.request import Request, RequestStatus
from tetrad.engine_core_svc.scheduler.adapter_registry import AdapterRegistry
from tetrad.engine_core_svc.scheduler.parked_requests import FIRST_TURN, LAST_TURN, ArrivalKey, ParkedRequests, Turn
from tetrad.services.errors import FailedPrecondition, Overloaded, Unsupported

_LET_IN_WHILE_OTHERS_WAIT = 64
"""Maximum number of requests of an active adapter that join the queue while another adapter waits for a place."""
_MAX_SHOWN = 128
"""Maximum number of names in each step's statistics, of running and of awaited adapters each."""


@dataclass(frozen=True, slots=True)
class AdapterLimits:
    """The maximum number of adapters in a step (`max_loras`), and on the worker (`max_cpu_loras`)."""

    max_loras: int
    max_cpu_loras: int


class NoAdapters:
    """The adapters of an engine that supports none."""

    loading: Sequence[Adapter] = ()

    def bind(self, release: Callable[[Request], None], last_returned_step: Callable[[], int]) -> None:
        """Do nothing."""

    def admits(self, request: Request) -> bool:  # noqa: ARG002 - of the interface
        """Return True: every request joins the queue."""
        return True

    def park(self, request: Request) -> None:
        """Do nothing: every request is admitted."""

    def retreat(self, request: Request) -> None:
        """Do nothing: no request has an adapter."""

    def prefer(self, adapter: Adapter | None, *, holds_others: bool) -> None:
        """Do nothing: no request has an adapter."""

    def resolve(self, ref: LoraRef, *, resumed: bool = False) -> Adapter:  # noqa: ARG002 - of the interface
        """Raise Unsupported, which names the option that enables adapters."""
        raise Unsupported(f"Adapter {ref.name!r} cannot be used: start with enable_lora.", field="lora_request")

    def begin(self, request: Request) -> None:
        """Do nothing."""

    def end(self, request: Request, status: RequestStatus) -> None:
        """Do nothing."""

    def forget_worker(self) -> None:
        """Do nothing."""

    def note_step(self) -> None:
        """Do nothing."""

    @property
    def running_names(self) -> list[str]:
        """The empty list."""
        return []

    @property
    def waiting_names(self) -> list[str]:
        """The empty list."""
        return []


class Adapters:
    """The adapters of one engine.

    Args:
        limits: maximum numbers of active and of loaded adapters.
        order: sort key of waiting requests.

    Attributes:
        registry: the known adapters.
        on_wanted: called with each adapter that the worker must load.
        on_evicted: called with each adapter that the worker must unload.
    """

    def __init__(self, limits: AdapterLimits, order: Callable[[Request], ArrivalKey]) -> None:
        self.registry = AdapterRegistry(self._is_in_flight, self._evict)
        self.on_wanted: Callable[[Adapter], None] = _nothing
        self.on_evicted: Callable[[Adapter], None] = _nothing
        self._limits = limits
        self._parked = ParkedRequests(order)
        self._uses = itertools.count(1)
        self._is_up = False
        self._awaits_room = False
        self._preferred = 0  # key of the adapter that gets the next place; 0: none
        self._holds_others = False  # whether no other adapter gets a place
        self._release: Callable[[Request], None] = _nothing
        self._last_returned_step: Callable[[], int] = _nowhere

    def bind(self, release: Callable[[Request], None], last_returned_step: Callable[[], int]) -> None:
        """Set the function that puts a parked request into the queue, and the one that returns the last step with a result."""
        self._release, self._last_returned_step = release, last_returned_step

    # --- requests ---------------------------------------------------------------------------------------------------

    def resolve(self, ref: LoraRef, *, resumed: bool = False) -> Adapter:
        """Return the adapter that a request names; see AdapterRegistry."""
        return self.registry.resolve(ref, resumed=resumed)

    def begin(self, request: Request) -> None:
        """Count an unfinished request of its adapter."""
        if request.adapter is not None:
            request.adapter.num_requests += 1

    def admits(self, request: Request) -> bool:
        """Return whether a request joins the queue now; otherwise the caller must park it."""
        adapter = request.adapter
        if adapter is None:
            return True
        if not (adapter.is_active and adapter.is_resident and self._has_turn(adapter)):
            return False
        self._let_in(adapter)
        return True

    def park(self, request: Request) -> None:
        """Keep a request until its adapter is active; then call `release` with it, possibly before this method returns."""
        self._parked.add(request)
        self._fill()

    def end(self, request: Request, status: RequestStatus) -> None:
        """Stop counting a request that has ended; `status` is its state before the end."""
        adapter = request.adapter
        if adapter is None:
            return
        adapter.num_requests -= 1
        if status is RequestStatus.WAITING_FOR_LORA:
            self._parked.remove(request)
        elif status is not RequestStatus.WAITING_FOR_GRAMMAR:
            adapter.last_step_id = max(adapter.last_step_id, request.last_step_id)
            self._let_out(adapter)
        self.registry.drop_if_unused(adapter)
        self._fill()

    def retreat(self, request: Request) -> None:
        """Let a queued request wait again for its adapter: the worker has lost it, or another one gets its place."""
        assert request.adapter is not None
        self._let_out(request.adapter)
        self._parked.add(request)

    def prefer(self, adapter: Adapter | None, *, holds_others: bool) -> None:
        """Give the next place to this adapter if requests wait for it, and until then none to others; None: there is none.

        Args:
            adapter: see above.
            holds_others: whether other adapters get none afterwards, either, so that none is loaded beside an isolated request.
        """
        self._preferred, self._holds_others = 0 if adapter is None else adapter.key, holds_others
        self._fill()

    @property
    def loading(self) -> Sequence[Adapter]:
        """The adapters that the worker is loading, one after the other, in this order."""
        loading = [each for each in self.registry.versions.values() if each.is_loading]
        return sorted(loading, key=lambda each: each.load_number)

    @property
    def running_names(self) -> list[str]:
        """The names of the first adapters that admitted requests use."""
        running = (adapter.ref.name for adapter in self.registry.versions.values() if adapter.num_admitted)
        return list(itertools.islice(running, _MAX_SHOWN))

    @property
    def waiting_names(self) -> list[str]:
        """The names of the first adapters that requests wait for."""
        most = min(self._limits.max_cpu_loras, _MAX_SHOWN)
        return [self.registry.versions[key].ref.name for key in itertools.islice(self._parked, most)]

    # --- the worker -------------------------------------------------------------------------------------------------

    def worker_ready(self) -> None:
        """Load adapters onto a new worker: pinned ones, then awaited ones, then those that the last worker had."""
        self._is_up = True
        by_use = sorted(self.registry.versions.values(), key=lambda each: -each.last_used)
        self._restore(adapter for adapter in by_use if adapter.is_pinned)
        self._fill()
        self._restore(by_use)

    def _restore(self, adapters: Iterable[Adapter]) -> None:
        """Load those of the adapters that the last worker had, as far as there are places."""
        for adapter in adapters:
            if adapter.was_resident and not adapter.is_loading and self._num_held < self._limits.max_cpu_loras:
                self._want(adapter)

    def forget_worker(self) -> None:
        """Mark all adapters as not loaded: the worker is lost. The caller must call `retreat` for its requests after this."""
        self._is_up = False
        for adapter in self.registry.versions.values():
            adapter.was_resident = adapter.is_resident or adapter.is_loading
            adapter.is_resident = adapter.is_loading = adapter.is_active = False
            adapter.last_step_id = -1
        self.registry.drop_retired()  # no plan is in flight any more

    def loaded(self, adapter: Adapter, digest: bytes) -> list[Request]:
        """Mark an adapter as loaded; return the requests that cannot go on, since they began with other files of it."""
        waiting = self._parked.of(adapter.key)
        changed = bool(adapter.digest) and adapter.digest != digest
        if changed:
            for request in waiting:
                request.block_hashes.clear()
        adapter.digest, adapter.is_loading, adapter.is_resident = digest, False, True
        adapter.num_crashes = 0
        adapter.last_used = next(self._uses)
        if not changed:
            self._fill()
            return []
        return [request for request in waiting if request.num_output_tokens]

    def waiting_for(self, adapter: Adapter) -> list[Request]:
        """Return the requests that wait for an adapter, in order."""
        return self._parked.of(adapter.key)

    def failed(self, adapter: Adapter) -> None:
        """Note that the worker cannot load an adapter. The caller has ended the requests that waited for it."""
        adapter.is_loading = adapter.is_resident = adapter.was_resident = False

    def refill(self) -> None:
        """Give free places to waiting adapters."""
        self._fill()

    def note_step(self) -> None:
        """Note that a step's result has arrived: adapters that the step named may be dropped or evicted now."""
        self.registry.drop_retired()
        if self._awaits_room:
            self._fill()

    def want(self, adapter: Adapter) -> None:
        """Load an adapter on an operator's order, which is repeated on each new worker. Raises Overloaded without a place."""
        if adapter.is_resident or adapter.is_loading or not self._is_up:
            return
        if not self._make_room(LAST_TURN):
            raise Overloaded(
                f"All {self._limits.max_cpu_loras} places for adapters (max_cpu_loras) are in use or pinned; try again later.",
                retry_after_s=1.0,
            )
        self._want(adapter)

    def pin(self, lora_id: int) -> Adapter:
        """Exclude an adapter from eviction. Raises NotFound, or FailedPrecondition if no place would be left for others."""
        adapter = self.registry.get(lora_id)
        num_pinned = sum(each.is_pinned for each in self.registry.versions.values() if each is not adapter)
        if num_pinned + 1 >= self._limits.max_cpu_loras:
            raise FailedPrecondition(
                f"{num_pinned} adapters are pinned; of max_cpu_loras {self._limits.max_cpu_loras} one place must stay free."
            )
        adapter.is_pinned = True
        return adapter

    # --- places -----------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Give free places to the adapters whose requests have waited longest, and load those next in line."""
        self._awaits_room = False
        if not (self._is_up and self._parked) or (self._holds_others and self._preferred not in self._parked):
            return
        for key in [self._preferred] if self._preferred in self._parked else sorted(self._parked, key=self._parked.turn_of):
            adapter = self.registry.versions[key]
            if not (adapter.is_resident or adapter.is_loading):
                if not self._make_room(FIRST_TURN if key == self._preferred else self._parked.turn_of(key)):
                    self._awaits_room = True  # later ones must not take the next place
                    return
                self._want(adapter)
            num_active = sum(each.is_active for each in self.registry.versions.values())
            may_run = self._has_turn(adapter) if adapter.is_active else num_active < self._limits.max_loras
            if adapter.is_resident and may_run:
                self._activate(adapter)

    def _has_turn(self, adapter: Adapter) -> bool:
        """Return whether more requests of an active adapter may join the queue."""
        return adapter.num_let_in < _LET_IN_WHILE_OTHERS_WAIT or all(key == adapter.key for key in self._parked)

    def _activate(self, adapter: Adapter) -> None:
        if not adapter.is_active:
            adapter.is_active, adapter.num_let_in = True, 0
        adapter.last_used = next(self._uses)
        for request in self._parked.take(adapter.key):
            self._let_in(adapter)
            self._release(request)

    def _let_in(self, adapter: Adapter) -> None:
        adapter.num_admitted += 1
        adapter.num_let_in += 1

    def _let_out(self, adapter: Adapter) -> None:
        adapter.num_admitted -= 1
        if not adapter.num_admitted:
            adapter.is_active = False

    @property
    def _num_held(self) -> int:
        return sum(each.is_resident or each.is_loading for each in self.registry.versions.values())

    def _make_room(self, turn: Turn) -> bool:
        """Evict adapters until the worker has room for one more; return whether it has room.

        Adapters that stand before `turn` in line are not evicted.
        """
        while self._num_held >= self._limits.max_cpu_loras:
            idle = [each for each in self.registry.versions.values() if self._may_evict(each)]
            later = [each for each in idle if self._parked.turn_of(each.key) > turn or each.key not in self._parked]
            victim = min(later, key=lambda each: (each.key in self._parked, each.last_used), default=None)
            if victim is None:
                return False
            self._evict(victim)
        return True

    def _may_evict(self, adapter: Adapter) -> bool:
        is_idle = not (adapter.is_active or adapter.is_pinned or adapter.num_admitted)
        return adapter.is_resident and is_idle and not self._is_in_flight(adapter)

    def _is_in_flight(self, adapter: Adapter) -> bool:
        """Return whether a plan in flight names the adapter."""
        return adapter.last_step_id > self._last_returned_step()

    def _want(self, adapter: Adapter) -> None:
        adapter.is_loading, adapter.was_resident = True, False
        adapter.load_number = next(self._uses)
        self.on_wanted(adapter)

    def _evict(self, adapter: Adapter) -> None:
        adapter.is_resident = False
        self.on_evicted(adapter)


def _nothing(_: object) -> None:
    """Do nothing; stands in until a function is bound."""


def _nowhere() -> int:
    return -1
