"""Adapter loading: loads and unloads adapters on the workers, beside the step loop, for requests and for operators.

Each load is one task; the scheduler's Adapters choose which adapters to load and to evict. No step waits: requests of an
adapter that is being loaded are WAITING_FOR_LORA. An adapter that cannot be loaded fails only the requests that need it.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from tetrad.engine_core_svc.core.adapter import Adapter, LoraRef
from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.scheduler.adapters import Adapters
from tetrad.engine_core_svc.worker.group import WorkerGroup
from tetrad.services.errors import (
    AlreadyExists,
    FailedPrecondition,
    InternalError,
    NotFound,
    TetradError,
    Unavailable,
    Unsupported,
)
from tetrad.services.log import get_logger

log = get_logger()

_CRASHES_TO_FAIL = 3
"""Number of workers that crash while they load an adapter, after which it is not loaded again. Requests may have caused two of
these crashes (see CrashIsolation)."""
_MOST_RETRIES, _RETRY_S = 20, 1.0
"""Retries of a load, and seconds between them: together longer than it takes to notice that a worker is lost."""


class LoraOrders(Protocol):
    """The interface for the step loop and for operators."""

    def worker_ready(self) -> None:
        """Load adapters onto a new worker, which has none."""

    def forget_worker(self) -> None:
        """Cancel all loads: the worker is lost."""

    def sleep(self) -> None:
        """End the orders of operators, and refuse further ones until a worker is ready: the engine sleeps."""

    async def add(self, ref: LoraRef) -> Adapter:
        """Load an adapter; return it when requests can use it."""

    async def remove(self, lora_id: int) -> None:
        """Forget an adapter, in the engine core and on the workers."""

    async def pin(self, lora_id: int) -> None:
        """Load an adapter and never evict it."""

    def list_loras(self) -> list[Adapter]:
        """Return all known adapters."""

    async def close(self) -> None:
        """Cancel all loads and unloads."""


class NoLoraOrders:
    """The orders of an engine without adapters."""

    def worker_ready(self) -> None:
        """Do nothing."""

    def forget_worker(self) -> None:
        """Do nothing."""

    def sleep(self) -> None:
        """Do nothing."""

    async def add(self, ref: LoraRef) -> Adapter:
        """Raise Unsupported, which names the option that enables adapters."""
        raise Unsupported(f"Adapter {ref.name!r} cannot be loaded: start with enable_lora.")

    async def remove(self, lora_id: int) -> None:
        """Raise NotFound: there are no adapters."""
        raise NotFound(f"There is no adapter with id {lora_id}: start with enable_lora.", reason="LORA_NOT_FOUND")

    async def pin(self, lora_id: int) -> None:
        """Raise NotFound: there are no adapters."""
        raise NotFound(f"There is no adapter with id {lora_id}: start with enable_lora.", reason="LORA_NOT_FOUND")

    def list_loras(self) -> list[Adapter]:
        """Return the empty list."""
        return []

    async def close(self) -> None:
        """Do nothing."""


class AdapterLoading:
    """Loads and unloads adapters; see LoraOrders.

    Args:
        adapters: the scheduler's adapters.
        workers: the workers that load the adapters.
        fail: ends requests with an error.
        on_change: called when waiting requests may continue.
        watch: reports the exceptions of a task, which are bugs.
    """

    def __init__(
        self,
        adapters: Adapters,
        workers: WorkerGroup,
        *,
        fail: Callable[[Iterable[Request], TetradError], None],
        on_change: Callable[[], None],
        watch: Callable[[asyncio.Task[None]], None],
    ) -> None:
        self._adapters, self._registry, self._workers = adapters, adapters.registry, workers
        self._fail, self._on_change, self._watch = fail, on_change, watch
        self._loads: dict[int, asyncio.Task[None]] = {}
        self._evictions: set[asyncio.Task[None]] = set()
        self._callers: dict[int, list[asyncio.Future[None]]] = {}
        self._sleeps = False
        adapters.on_wanted, adapters.on_evicted = self._start, self._evict

    # --- the worker -------------------------------------------------------------------------------------------------

    def worker_ready(self) -> None:
        """See LoraOrders. Operators get an error if this worker has no place for their adapter."""
        self._sleeps = False
        for adapter in [each for each in self._registry.versions.values() if each.num_crashes >= _CRASHES_TO_FAIL]:
            self._fail_crashing(adapter)
        self._adapters.worker_ready()
        for adapter in [each for each in self._registry.versions.values() if each.key in self._callers]:
            try:
                self._adapters.want(adapter)
            except TetradError as error:
                self._end_callers(adapter, error)

    def _fail_crashing(self, adapter: Adapter) -> None:
        """End the requests and orders that wait for an adapter, because workers have crashed while they loaded it."""
        text = f"{adapter.num_crashes} workers died while they loaded it. Do not use it again."
        log.error("lora.crashes", name=adapter.ref.name, path=adapter.ref.path, crashes=adapter.num_crashes)
        self._end_load(adapter, _named(InternalError(text), adapter))

    def forget_worker(self) -> None:
        """See LoraOrders. Operators whose load was cancelled wait for the next worker."""
        for task in (*self._loads.values(), *self._evictions):
            task.cancel()
        self._loads.clear()
        self._evictions.clear()

    def sleep(self) -> None:
        """See LoraOrders."""
        self._sleeps = True
        for adapter in [each for each in self._registry.versions.values() if each.key in self._callers]:
            self._end_callers(adapter, _asleep())

    async def close(self) -> None:
        """See LoraOrders."""
        tasks = (*self._loads.values(), *self._evictions)
        self.forget_worker()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- orders -----------------------------------------------------------------------------------------------------

    async def add(self, ref: LoraRef) -> Adapter:
        """See LoraOrders.

        Raises AlreadyExists if the number belongs to another adapter and `load_inplace` is not set; FailedPrecondition, reason
        SLEEPING, if the engine sleeps.
        """
        self._check_awake()
        known = next((each for each in self._registry if each.ref.lora_id == ref.lora_id), None)
        if known is not None and not ref.load_inplace:
            if not known.ref.is_same(ref):
                raise AlreadyExists(f"Adapter id {ref.lora_id} is {known.ref.name!r} at {known.ref.path}; unload it first.")
            await self._load(known)
            return known
        adapter = self._registry.add(ref)
        try:
            await self._load(adapter)
        except TetradError:
            self._registry.discard(adapter)
            raise
        except asyncio.CancelledError:  # the caller has disconnected: the version before stays, if there is one
            self._registry.drop_if_unused(adapter)
            raise
        if adapter.key not in self._registry.versions:  # removed at the moment at which the load ended
            raise _unloaded(adapter)
        self._registry.replace(adapter)
        return adapter

    async def remove(self, lora_id: int) -> None:
        """See LoraOrders. Raises FailedPrecondition while unfinished requests use the adapter."""
        adapter = self._registry.remove(lora_id)
        self._end_callers(adapter, _unloaded(adapter))
        await asyncio.gather(*self._evictions, return_exceptions=True)

    async def pin(self, lora_id: int) -> None:
        """See LoraOrders. Raises FailedPrecondition, reason SLEEPING, if the engine sleeps. A failed order pins nothing."""
        self._check_awake()
        was_pinned = self._registry.get(lora_id).is_pinned
        adapter = self._adapters.pin(lora_id)
        try:
            await self._load(adapter)
        except TetradError:
            adapter.is_pinned = was_pinned
            raise

    def list_loras(self) -> list[Adapter]:
        """See LoraOrders."""
        return list(self._registry)

    def _check_awake(self) -> None:
        if self._sleeps:
            raise _asleep()

    async def _load(self, adapter: Adapter) -> None:
        if adapter.is_resident:
            return
        self._adapters.want(adapter)
        caller = asyncio.get_running_loop().create_future()
        self._callers.setdefault(adapter.key, []).append(caller)
        await caller

    # --- tasks ------------------------------------------------------------------------------------------------------

    def _start(self, adapter: Adapter) -> None:
        task = self._loads[adapter.key] = asyncio.create_task(self._run(adapter), name="lora.load")
        self._watch(task)

    async def _run(self, adapter: Adapter) -> None:
        name, path = adapter.ref.name, adapter.ref.path
        try:
            if self._evictions:
                await asyncio.wait(set(self._evictions))
            digest = await self._load_with_retries(adapter)
        except TetradError as error:
            log.warning("lora.failed", name=name, path=path, error=error.message)
            self._end_load(adapter, _named(error, adapter))
            return
        except Exception as error:
            log.exception("lora.failed", name=name, path=path)
            self._end_load(adapter, InternalError(f"Adapter {name!r} could not be loaded: {error}."))
            return
        log.info("lora.loaded", name=name, path=path, lora_id=adapter.ref.lora_id)
        self._loads.pop(adapter.key, None)
        if adapter.key not in self._registry.versions:  # it was removed meanwhile
            self._evict(adapter)
            return
        if stranded := self._adapters.loaded(adapter, digest):
            text = f"The files of adapter {name!r} have changed since this request began with them; it cannot go on."
            self._fail(stranded, FailedPrecondition(text, reason="LORA_CHANGED"))
        self._adapters.refill()
        self._end_callers(adapter, None)
        self._on_change()

    async def _load_with_retries(self, adapter: Adapter) -> bytes:
        """Load an adapter, and repeat it while the worker is unreachable; return the hash of its files.

        In general the worker is lost then: `forget_worker` cancels this task, and the next worker loads the adapter.
        """
        for _ in range(_MOST_RETRIES):
            try:
                return await self._workers.load_lora(adapter)
            except Unavailable as error:
                log.info("lora.unavailable", name=adapter.ref.name, error=error.message)
            await asyncio.sleep(_RETRY_S)
        return await self._workers.load_lora(adapter)

    def _end_load(self, adapter: Adapter, error: TetradError) -> None:
        self._loads.pop(adapter.key, None)
        # Until they have ended, the adapter counts as loading: otherwise the end of one would load it again for the others.
        self._fail(self._adapters.waiting_for(adapter), error)
        self._adapters.failed(adapter)
        self._registry.discard(adapter)
        self._end_callers(adapter, error)
        self._adapters.refill()
        self._on_change()

    def _end_callers(self, adapter: Adapter, error: TetradError | None) -> None:
        for caller in self._callers.pop(adapter.key, ()):
            if caller.done():
                continue
            if error is None:
                caller.set_result(None)
            else:
                caller.set_exception(error)

    def _evict(self, adapter: Adapter) -> None:
        task = asyncio.create_task(self._unload(adapter), name="lora.unload")
        self._watch(task)
        self._evictions.add(task)
        task.add_done_callback(self._evictions.discard)

    async def _unload(self, adapter: Adapter) -> None:
        try:
            await self._workers.unload_lora(adapter)
        except TetradError as error:  # a lost worker has no adapters
            log.warning("lora.unload_failed", name=adapter.ref.name, error=error.message)


def _named(error: TetradError, adapter: Adapter) -> TetradError:
    """Return the error with the adapter's name, so that callers know which adapter it concerns."""
    return type(error)(
        f"Adapter {adapter.ref.name!r} at {adapter.ref.path} cannot be loaded: {error.message}",
        reason="LORA_NOT_USABLE",
    )


def _unloaded(adapter: Adapter) -> FailedPrecondition:
    return FailedPrecondition(f"Adapter {adapter.ref.name!r} was unloaded while it was loaded.")


def _asleep() -> FailedPrecondition:
    return FailedPrecondition("The engine sleeps and loads no adapter; wake it up first.", reason="SLEEPING")
