"""Engine: the step loop, and the calls that sessions make.

One task on the event loop runs all steps; a new request, a result or an operator's command wakes it. It plans ahead up to the
pipeline's depth, never waits for a step, and sleeps when idle. After the loss of a worker, every request is recomputed on the
next one (recovery.py). An unexpected exception ends `run`, and with it the process: frontends resume on its successor.
"""

import asyncio
import time
from collections.abc import Iterable

from tetrad.engine_core_svc.core.plan import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput
from tetrad.engine_core_svc.core.request import Request, RequestStatus
from tetrad.engine_core_svc.engine.adapter_loading import AdapterLoading, LoraOrders, NoLoraOrders
from tetrad.engine_core_svc.engine.admission import Admission
from tetrad.engine_core_svc.engine.arrivals import Arrivals
from tetrad.engine_core_svc.engine.condition import Condition
from tetrad.engine_core_svc.engine.crash_isolation import CrashIsolation
from tetrad.engine_core_svc.engine.guard import Guard
from tetrad.engine_core_svc.engine.orders import Orders
from tetrad.engine_core_svc.engine.plan_timing import PlanTiming
from tetrad.engine_core_svc.engine.publisher import Observers, Publisher
from tetrad.engine_core_svc.engine.queue_limits import QueueLimits
from tetrad.engine_core_svc.engine.recovery import Recovery
from tetrad.engine_core_svc.engine.sleep import Sleeper
from tetrad.engine_core_svc.engine.stall_watch import StallWatch
from tetrad.engine_core_svc.engine.submission_wire import Submission
from tetrad.engine_core_svc.engine.weight_updates import WeightUpdates
from tetrad.engine_core_svc.kv_cache.event_log import KvEventLog
from tetrad.engine_core_svc.observability.metrics import EngineMetrics
from tetrad.engine_core_svc.observability.request_spans import RequestSpans
from tetrad.engine_core_svc.scheduler.adapters import Adapters
from tetrad.engine_core_svc.scheduler.scheduler import Scheduler
from tetrad.engine_core_svc.sessions.outbox import Notice
from tetrad.engine_core_svc.sessions.sessions import Session, Sessions
from tetrad.engine_core_svc.structured_output.compiler import GrammarCompiler
from tetrad.engine_core_svc.worker.group import Loss, PlanStream, WorkerGroup
from tetrad.services.errors import PoisonousRequest
from tetrad.services.log import get_logger

log = get_logger()


class Engine:
    """The engine: takes requests, runs steps and publishes outputs.

    Args:
        scheduler: used by this engine only.
        admission: checks submissions.
        workers: compute its steps.
        compiler: makes the grammars of constrained requests.
        recovery_timeout_s: seconds that requests wait for a new worker after a loss.
        stall_timeout_s: seconds that requests may wait while no step runs, before health reports it.
        tokens_to_clear: see CrashIsolation.
        queue_limits: refuse requests that would wait too long.
        kv_events: log of the prefix cache's changes, for subscribers.
        metrics: metrics of this engine alone.
        spans: spans of traced requests.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        admission: Admission,
        workers: WorkerGroup,
        compiler: GrammarCompiler,
        *,
        recovery_timeout_s: float,
        stall_timeout_s: float,
        long_steps_in_flight: int,
        tokens_to_clear: int,
        queue_limits: QueueLimits,
        kv_events: KvEventLog,
        metrics: EngineMetrics,
        spans: RequestSpans,
    ) -> None:
        self.scheduler = scheduler
        self.kv_events = kv_events
        self.sessions = Sessions()
        self.observers = Observers()
        self.condition = Condition(self.observers.notify)
        self.workers = workers
        self.sleeper = Sleeper(workers, self.sessions, self.condition)
        self.worker_since_s: float | None = None  # monotonic seconds; None: there is no worker
        self._spans = spans
        self._queue_limits = queue_limits
        self._suspects = CrashIsolation(scheduler, tokens_to_clear=tokens_to_clear)
        self._changed = asyncio.Event()
        self._publisher = Publisher(
            scheduler, self.sessions, self.observers, metrics, spans, on_change=self._wake, on_end=self._forget
        )
        self.orders = Orders(scheduler, self.sleeper, abort_all=self._publisher.abort_all, on_change=self._wake)
        self.weight_updates = WeightUpdates(workers, self.sessions, self.orders, metrics)
        self._guard = Guard(self._changed.set)
        self._plan_timing = PlanTiming(
            self._changed.set, max_long=long_steps_in_flight, fills_stages=scheduler.stages.num_stages > 1
        )
        self._recovery = Recovery(
            scheduler,
            self._suspects,
            self.sessions,
            self.condition,
            timeout_s=recovery_timeout_s,
            give_up=self._guard.wrap(self._publisher.fail_all),
        )
        self._stall_watch = StallWatch(scheduler, self.sessions, self.condition, timeout_s=stall_timeout_s)
        self.arrivals = Arrivals(
            scheduler,
            self.sessions,
            self._publisher,
            metrics,
            admission,
            queue_limits,
            compiler,
            self._guard,
            check_running=self._check_running,
            on_change=self._wake,
        )
        scheduler.grammars.on_change = self._changed.set
        self.loras = self._make_loras()
        self._metrics = metrics
        self._schedule = metrics.timed(metrics.schedule_seconds, self._plan)
        self._update = metrics.timed(metrics.update_seconds, self._apply)
        metrics.watch(self)

    def _make_loras(self) -> LoraOrders:
        if not isinstance(self.scheduler.adapters, Adapters):
            return NoLoraOrders()
        return AdapterLoading(
            self.scheduler.adapters,
            self.workers,
            fail=lambda requests, error: self._publisher.fail([request.key for request in requests], error),
            on_change=self._wake,
            watch=self._guard.watch,
        )

    # --- the step loop ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until cancelled.

        Raises the worker's error if it can never serve the model or serves a newer engine core, and any exception from a bug.
        """
        while True:
            executor = await self._recovery.find_worker(self.weight_updates, self._changed.set)
            self._fail_suspects(self._recovery.regain(executor.instance_id))
            if self.sleeper.note_worker():
                self.orders.resume()
            self.worker_since_s = time.monotonic()
            self._plan_timing.shares_cores = self.workers.computes_on_cores
            self.scheduler.shares_params = executor.shares_params
            self.scheduler.drafting.set_worker(verifies_drafts=executor.verifies_drafts)
            self.loras.worker_ready()
            try:
                loss = await self._run_steps(executor)
                self._stall_watch.rest()
                if loss is None:
                    self.scheduler.forget_worker()
                else:
                    self._note_loss(loss, executor.instance_id)
            finally:
                self.worker_since_s = None
                self.loras.forget_worker()
                await executor.close()
                self.weight_updates.note_closed()
            if loss is None:
                await self.weight_updates.apply()
                await self._rest()
            elif loss.error.reason == "STALE_EPOCH":
                raise loss.error

    async def _rest(self) -> None:
        """Sleep until an operator wakes the engine up, if one has ordered a sleep."""
        if self.sleeper.is_ordered:
            self.loras.sleep()
            await self.sleeper.rest()

    async def _run_steps(self, executor: PlanStream) -> Loss | None:
        """Step on every change until the worker is lost, or the engine may rest; return the loss, or None.

        Results that arrived before the loss are applied.
        """
        self._changed.set()
        while executor.lost is None:
            await self._changed.wait()
            self._changed.clear()
            self._guard.check()
            self.step(executor)
            if executor.num_in_flight == 0 and self.orders.may_rest:
                return None
        return executor.lost

    def step(self, executor: PlanStream) -> None:
        """Apply the results that have arrived, then plan as far ahead as the pipeline allows."""
        for result in executor.take_results():
            self._publisher.begin_step(result.step_id)
            self._metrics.note_result(result.step_id)
            self._plan_timing.note_result(result.compute_s)
            self._publisher.publish(self._update(result))
        if (events := executor.take_encoder_events()) is not None and (failed := self.scheduler.note_encoded(events)):
            self._publisher.publish(failed)
        for transfers in executor.take_transfer_events():
            self._metrics.note_transfers(transfers)
            self.scheduler.note_transfers(transfers)
        if ended := self.scheduler.finish_constrained():
            self._publisher.publish(ended)
        self._suspects.choose(executor.num_in_flight + self.scheduler.media.num_encoding)
        while self._may_plan(executor) and (plan := self._schedule()) is not None:
            self._note_admissions(plan)
            self._metrics.note_plan(plan)
            executor.dispatch(plan)
            self._plan_timing.note_dispatched(executor.num_in_flight, lets_in=bool(plan.new_requests))
        if asked := self.scheduler.media.take_asked():
            executor.encode(asked)
        is_idle = executor.num_in_flight == 0
        if is_idle:
            self._publisher.report_idle()
        self._stall_watch.note_step(is_standing=is_idle and self._has_work and not self.scheduler.num_beside_steps)
        self.observers.notify()

    def _wake(self) -> None:
        """Run the step loop again, and notify the observers."""
        self._changed.set()
        self.observers.notify()

    def _may_plan(self, executor: PlanStream) -> bool:
        return not self.orders.is_frozen and executor.has_room and self._plan_timing.is_due(executor.num_in_flight)

    @property
    def _has_work(self) -> bool:
        """Whether any request could be planned if there were room: it waits for no operator, grammar or adapter."""
        states = self.scheduler.states
        return len(states.requests) > states.num_preparing and not self.orders.is_paused

    # The methods are looked up at each step, not once: a profile may have wrapped them by then.

    def _plan(self) -> SchedulerOutput | None:
        return self.scheduler.schedule()

    def _apply(self, result: ModelRunnerOutput) -> list[EngineCoreOutput]:
        return self.scheduler.update(result)

    def _note_admissions(self, plan: SchedulerOutput) -> None:
        if not plan.new_requests:
            return
        now = time.monotonic()
        self._queue_limits.note_departures(len(plan.new_requests), sum(len(new.token_ids) for new in plan.new_requests))
        for new in plan.new_requests:
            request = self.scheduler.requests[new.key]
            request.scheduled_at = request.scheduled_at or now

    # --- calls of sessions ------------------------------------------------------------------------------------------

    def open_session(self, client_id: str) -> Session:
        """Open and return a session for a frontend. Raises Unavailable while draining."""
        self.arrivals.check_open()
        log.info("session.opened", client_id=client_id)
        session = self.sessions.open(client_id)
        self.sleeper.notify(session)
        self._recovery.notify(session)
        self._stall_watch.notify(session)
        self.observers.notify()
        return session

    def close_session(self, session: Session) -> None:
        """Forget a session and end its requests."""
        keys = self.sessions.close(session)
        self._publisher.end(keys, RequestStatus.FINISHED_ABORTED)
        log.info("session.closed", client_id=session.client_id, aborted=len(keys))

    def _check_running(self, submission: Submission) -> None:
        """Raise Unavailable if a new worker is overdue, or a request that is not resumed would wait for the end of a sleep."""
        self._recovery.check_not_overdue()
        if not submission.resumed:
            self.sleeper.check_awake()

    def _forget(self, request: Request) -> None:
        self.arrivals.forget(request)

    def abort_requests(self, session: Session, request_ids: Iterable[str]) -> None:
        """End requests of a session without an answer; unknown and finished ids are ignored."""
        keys = [key for request_id in request_ids if (key := session.request_keys.get(request_id)) is not None]
        self._publisher.end(keys, RequestStatus.FINISHED_ABORTED)

    def reset_prefix_cache(self, *, preempt_running: bool = False) -> bool:
        """See Scheduler.reset_prefix_cache; preempted requests are planned again."""
        done = self.scheduler.reset_prefix_cache(preempt_running=preempt_running)
        self._wake()
        return done

    def reset_encoder_cache(self) -> None:
        """See Media.reset_cache; the next plan names the dropped embeddings to the worker."""
        self.scheduler.media.reset_cache()
        self._wake()

    async def until_held(self) -> bool:
        """Wait until an operator's pause holds all requests; return False if the pause is over before.

        A pause that freezes requests holds them at once; one that lets running requests finish holds them afterwards.
        """
        changed = self.observers.observe()
        try:
            while self.orders.is_paused and not self.orders.is_frozen and self.scheduler.running:
                changed.clear()
                await changed.wait()
        finally:
            self.observers.unobserve(changed)
        return self.orders.is_paused

    # --- drain and close --------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Refuse new requests, wait until none are left or none can continue, and close the sessions.

        Sessions end without an error: their frontends resume unfinished requests on another engine core.
        """
        self.arrivals.drain()
        self.sessions.broadcast(Notice("DRAINING", "The engine core is draining; no new requests are taken."))
        changed = self.observers.observe()
        try:
            while self._can_finish:
                changed.clear()
                await changed.wait()
        finally:
            self.observers.unobserve(changed)
            log.info("engine.drained", handed_back=len(self.scheduler.requests))
            for session in self.sessions:
                session.outbox.close()

    @property
    def _can_finish(self) -> bool:
        """Whether any unfinished request may end: the engine makes progress, and no operator holds all that are left."""
        is_held = self.orders.is_frozen or (self.orders.is_paused and not self.scheduler.running)
        return self.scheduler.has_requests and not is_held and not self.condition.problem

    async def close(self) -> None:
        """Stop everything that runs beside the step loop."""
        self._plan_timing.rest()
        self._recovery.close()
        self._stall_watch.close()
        await self.arrivals.close()
        await self.loras.close()
        self.scheduler.grammars.close()

    # --- worker loss ------------------------------------------------------------------------------------------------

    def _note_loss(self, loss: Loss, instance_id: str) -> None:
        self._metrics.note_loss(loss.error.reason)
        self._spans.note_loss(self.scheduler.requests.values())
        self._recovery.lose(loss, instance_id)

    def _fail_suspects(self, requests: Iterable[Request]) -> None:
        """End requests that crashed a worker while no other request ran."""
        error = PoisonousRequest(
            "Workers died three times or more while this request ran, the last time with nothing else to run. Do not send it "
            "again."
        )
        self._publisher.fail([request.key for request in requests], error)
