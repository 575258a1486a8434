"""Weight updates: replaces the weights of the workers between two steps, on an operator's command.

Commands come from the admin service: `begin`, `check`, `finish`. The engine's run loop calls `apply` when no plan is in flight
and its stream to the worker is closed, and connects the worker afterwards as after a loss: every request is computed again,
nothing that the weights before have computed is used. Without a worker, or while the engine sleeps, an update is applied at
once. All on the event loop. Knows the workers' commands; knows no requests.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from tetrad.engine_core_svc.engine.orders import Orders
from tetrad.engine_core_svc.observability.metrics import EngineMetrics
from tetrad.engine_core_svc.sessions.sessions import Sessions
from tetrad.engine_core_svc.worker.group import NewWeights, PlanStream, Weights, WorkerGroup
from tetrad.services.errors import AlreadyExists, FailedPrecondition, TetradError, Unavailable
from tetrad.services.log import get_logger

_MOST_ATTEMPTS = 2
"""Attempts to load new weights, if a worker is lost meanwhile."""

log = get_logger()


@dataclass(slots=True)
class _Ordered:
    """An update that the run loop has to apply."""

    weights: NewWeights
    version: str
    ended: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    num_attempts: int = 0


class WeightUpdates:
    """The updates of an engine's weights, one at a time.

    Args:
        workers: the workers whose weights are replaced.
        sessions: their outputs name the weights.
        orders: holds requests meanwhile.
        metrics: counts the updates.
    """

    def __init__(self, workers: WorkerGroup, sessions: Sessions, orders: Orders, metrics: EngineMetrics) -> None:
        self._workers, self._sessions, self._orders, self._metrics = workers, sessions, orders, metrics
        self._connecting = asyncio.Lock()  # guards against a worker that is connected while its weights are replaced
        self._is_connected = False
        self._is_begun = False
        self._num_begun = 0
        self._checked: NewWeights | None = None
        self._ordered: _Ordered | None = None

    @property
    def present(self) -> Weights:
        """The weights that serve."""
        return self._workers.weights

    @property
    def checked_path(self) -> str:
        """The path that `finish` would apply; empty: there is none."""
        return "" if self._checked is None else self._checked.path

    # --- commands ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin an update; drop one that was not finished."""
        self._is_begun, self._checked = True, None
        self._num_begun += 1

    async def check(self, path: str) -> None:
        """Let the workers check the weights at a path, which `finish` applies. A failure ends the update.

        Raises FailedPrecondition if no update was begun, or another one meanwhile; NotFound or ModelError if the weights do not
        fit the model; and Unavailable if a worker is lost.
        """
        if not self._is_begun:
            raise FailedPrecondition("No update of the weights was begun; call StartWeightUpdate first.")
        self._is_begun, number = False, self._num_begun
        checked = await self._workers.check_weights(path)
        if number != self._num_begun:
            raise FailedPrecondition(f"Another update of the weights was begun while {path[:200]} was checked; try again.")
        self._checked = checked

    async def finish(self, version: str, *, abort: bool = False, finish_running: bool = False) -> str:
        """Apply the checked weights at the next boundary of steps; return their name.

        Args:
            version: their name; empty: that of the weights before.
            abort, finish_running: see Orders.pause; by default unfinished requests are kept.

        Raises:
            FailedPrecondition: no weights were checked, or they cannot be loaded. The weights before serve.
            AlreadyExists: another update is being applied.
            Unavailable: workers were lost meanwhile. The weights before serve.
        """
        if self._checked is None:
            raise FailedPrecondition("There are no weights to apply; call StartWeightUpdate and UpdateWeights first.")
        if self._ordered is not None:
            raise AlreadyExists("Another update of the weights is being applied; wait for its end.")
        ordered = self._ordered = _Ordered(self._checked, version or self._workers.weights.version)
        self._checked = None
        self._orders.hold_for_update(abort=abort, finish_running=finish_running)
        async with self._connecting:
            if not self._is_connected:
                await self._apply(most_attempts=1)
        # The update goes on if the caller has disconnected.
        await asyncio.shield(ordered.ended)
        return self._workers.weights.version

    async def name(self, version: str) -> None:
        """Give the present weights another name."""
        await self._workers.name_weights(version)
        self._sessions.weight_version = version

    # --- calls of the run loop --------------------------------------------------------------------------------------

    async def connect(self, on_change: Callable[[], None]) -> PlanStream:
        """Return an open stream to the workers, see WorkerGroup; wait while their weights are replaced."""
        async with self._connecting:
            stream = await self._workers.connect(on_change)
            self._is_connected = True
        self._sessions.weight_version = self._workers.weights.version
        return stream

    def note_closed(self) -> None:
        """Note that the stream is closed."""
        self._is_connected = False

    async def apply(self) -> None:
        """Replace the weights, if that was ordered. If a worker is lost meanwhile, the next call tries it once more."""
        async with self._connecting:
            await self._apply(_MOST_ATTEMPTS)

    async def _apply(self, most_attempts: int) -> None:
        ordered = self._ordered
        if ordered is None:
            return
        ordered.num_attempts += 1
        try:
            await self._workers.replace_weights(ordered.weights, ordered.version)
        except TetradError as error:
            log.warning("weights.not_replaced", path=ordered.weights.path, error=error.message, attempt=ordered.num_attempts)
            if not isinstance(error, Unavailable) or ordered.num_attempts >= most_attempts:
                self._end(ordered, error)
            return
        log.info("weights.replaced", path=ordered.weights.path, version=ordered.version)
        self._end(ordered, None)

    def _end(self, ordered: _Ordered, error: TetradError | None) -> None:
        self._ordered = None
        self._orders.end_update()
        self._metrics.note_weight_update(is_done=error is None)
        if error is None:
            ordered.ended.set_result(None)
        else:
            ordered.ended.set_exception(error)
            ordered.ended.exception()  # the caller may have disconnected
