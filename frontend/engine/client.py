"""EngineClient: one engine core over all its sessions; its requests (client_requests.py) survive each of them.

When a session breaks, the client opens another with back-off and adds every unfinished request again, with its tokens so far.
After `recovery_timeout_s` without a working engine core they fail with Unavailable. One event loop; knows no text. Invariant:
a step is applied whole before the session counts as lost, so a request is resumed exactly after the tokens its client has.
"""

import asyncio
import time
from collections.abc import Iterable
from typing import Protocol

from tetrad.frontend.engine.client_requests import EngineRequests, is_pinned
from tetrad.frontend.engine.client_sequence import ActiveSequence
from tetrad.frontend.engine.facts import EngineInfo
from tetrad.frontend.engine.inbox import EngineInbox
from tetrad.frontend.engine.link import EngineLink
from tetrad.frontend.engine.load import EngineLoad
from tetrad.frontend.engine.session_client import EngineSession, Notice, ProtocolError, Rejection, TransportError
from tetrad.frontend.net.backoff import Backoff
from tetrad.frontend.request.sequence import Sequence
from tetrad.frontend.request.steps import Step
from tetrad.services.errors import FailedPrecondition, InternalError, TetradError, Unavailable
from tetrad.services.log import get_logger
from tetrad.services.message_size import DEFAULT_MAX_MESSAGE_BYTES
from tetrad.services.timers.running_time import RunningTimer

log = get_logger()

WORKER_LOST, DRAINING, SLEEPING, STALLED = "its worker is lost", "draining", "asleep", "its requests make no progress"
_PROBLEM_OF_NOTICE = {"WORKER_LOST": WORKER_LOST, "DRAINING": DRAINING, "SLEEPING": SLEEPING, "STALLED": STALLED}
_GOOD_NOTICES = ("RECOVERED", "AWAKE")


class StepSink(Protocol):
    """Receiver of an engine core's outputs."""

    async def process(self, step: Step) -> None:
        """Take one step's outputs; the next is read when this returns."""

    async def settle(self, engine_index: int) -> None:
        """Return when the outputs of all steps that were taken of an engine have been applied; raises what failed."""

    def fail(self, sequence: Sequence, error: TetradError) -> None:
        """End a sequence with an error."""


class EngineObserver(Protocol):
    """Receiver of an engine core's changes of state."""

    def on_change(self) -> None:
        """An engine was connected or lost, or has another problem."""

    def on_lost(self, engine: "EngineClient") -> None:
        """A session that was open broke."""

    def place_elsewhere(self, engine: "EngineClient", requests: list[ActiveSequence]) -> bool:
        """Give requests that `engine` has no more to another one; False: there is none that would take them."""


class EngineClient:
    """One engine core.

    Args:
        target: its address.
        link: to it; owned from now on.
        sink: takes outputs and failures.
        recovery_timeout_s: how long requests wait for an engine that is lost.
        number: this frontend's number for it, which its steps bear: engines need not have different ones of their own.
        max_message_bytes: largest message that the link reads and writes.

    Attributes:
        number: the same.
        load: how busy it is.
        is_draining: it said that it is leaving; it is not expected back when it is lost.
        problem: why it makes no progress now, in words for people outside; empty: it does.
        observer: set by the pool.
        since: wall clock in seconds at which a session was opened or lost last.
    """

    def __init__(
        self,
        target: str,
        link: EngineLink,
        sink: StepSink,
        *,
        recovery_timeout_s: float,
        number: int = 0,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        self.target = target
        self.link = link
        self.load = EngineLoad()
        self.is_draining = False
        self.number = number
        self.problem = "not connected"
        self.observer: EngineObserver | None = None
        self._sink = sink
        self._recovery_timeout_s = recovery_timeout_s
        self._max_message_bytes = max_message_bytes
        self._requests = EngineRequests(target, sink.fail, recovery_timeout_s=recovery_timeout_s)
        self._ready = asyncio.Event()
        self._backoff = Backoff()
        self._expiry: RunningTimer | None = None
        self._task: asyncio.Task[None] | None = None
        self._lost_reason: TetradError | None = None
        self._broke_contract = False
        self._replaced_epochs: set[int] = set()
        self.info: EngineInfo | None = None
        self.num_sessions = 0
        self.since = time.time()

    @property
    def connected(self) -> bool:
        """Whether a session is open."""
        return self._ready.is_set()

    @property
    def given_up(self) -> bool:
        """Whether it has been away for so long that requests are refused rather than kept for it."""
        return not self.connected and self._expiry is None

    @property
    def max_message_bytes(self) -> int:
        """Largest message to the engine core."""
        return self._max_message_bytes if self.info is None else min(self._max_message_bytes, self.info.max_message_bytes)

    @property
    def num_unfinished(self) -> int:
        """Sequences this engine is to bring to an end."""
        return len(self._requests)

    def start(self) -> None:
        """Begin to connect."""
        self._task = asyncio.create_task(self._run(), name=f"engine session {self.target}")

    async def wait_ready(self) -> EngineInfo:
        """Wait for the first session; FailedPrecondition if there can never be one."""
        assert self._task is not None
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait({ready, self._task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if self._task.done():
            self._task.result()
        assert self.info is not None
        return self.info

    def not_ready(self, timeout_s: float) -> Unavailable:
        """Return the error of an engine that was not ready in time."""
        why = self.link.problem or self._lost_reason
        reason = f" ({why})" if why else ""
        return Unavailable(f"The engine core at {self.target} was not ready within {timeout_s:g} s{reason}.")

    def add(self, active: ActiveSequence) -> None:
        """Send a request in a batch with the others of that moment; Unavailable if the engine has been away for too long.

        Args:
            active: the sequence, which gets the outputs, and its message. If another engine core may have accepted it, this one
                goes on behind the tokens that exist.
        """
        if self.given_up:
            raise self._unavailable()
        self.load.note_sent()
        self._requests.add(active)

    def release(self) -> list[ActiveSequence]:
        """Give the requests up that this engine, which is lost, need not have for its own."""
        return self._requests.release()

    def forget(self, request_id: str) -> None:
        """Drop a finished sequence."""
        self._requests.forget(request_id)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Tell the engine to end sequences, which the caller then forgets; unknown ids are ignored."""
        for request_id in request_ids:
            self._requests.abort(request_id)

    async def close(self) -> None:
        """End the session; the engine aborts what is left of it."""
        self._cancel_expiry()
        self._requests.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.link.close()

    async def _run(self) -> None:
        while True:
            is_broken = False
            try:
                await self._serve()
                self._lost_reason = Unavailable("the stream ended")
            except TetradError as error:
                is_broken = True
                self._lost_reason = error
                self._broke_contract |= isinstance(error, ProtocolError)
                if isinstance(error, FailedPrecondition):
                    # Another contract revision: trying again cannot help the requests, though a new engine may.
                    self._expire()
                    if self.info is None:
                        raise
            except Exception as error:  # a bug of ours must not leave the requests without an engine
                log.exception("engine.session_failed", target=self.target)
                self._lost_reason, self._broke_contract = InternalError(repr(error)), True
            self._on_lost(is_broken=is_broken)
            await self._backoff.wait()

    async def _serve(self) -> None:
        """Run one session until it breaks."""
        session = EngineSession(self.link.open_session(), self._max_message_bytes)
        writer: asyncio.Task[None] | None = None
        inbox: EngineInbox | None = None
        try:
            self._on_ready(await session.open())
            writer = asyncio.create_task(self._requests.outgoing.write(session), name=f"engine writer {self.target}")
            inbox = EngineInbox(session)
            while (received := await inbox.take()) is not None:
                await self._take(received)
        finally:
            session.cancel()
            if inbox is not None:
                await inbox.close()
            if writer is not None:
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)
            await self._sink.settle(self.number)

    async def _take(self, received: Step | Rejection | Notice) -> None:
        if isinstance(received, Step):
            self._note_progress()
            self._note_step(received)
            await self._sink.process(received)
            self._requests.go_on()
        elif isinstance(received, Rejection):
            self._take_rejection(received)
        else:
            log.info("engine.notice", target=self.target, kind=received.kind, text=received.text)
            if received.kind in _PROBLEM_OF_NOTICE:
                self.is_draining |= received.kind == "DRAINING"
                self._set_problem(_PROBLEM_OF_NOTICE[received.kind])
            elif received.kind in _GOOD_NOTICES:
                self._set_problem("")

    def _note_step(self, step: Step) -> None:
        """Take what a step tells of the engine itself."""
        step.engine_index = self.number
        if step.scheduler is not None:
            self.load.note_report(step.scheduler)

    def _note_progress(self) -> None:
        """Note that the session brought something that can be believed."""
        if self._broke_contract:
            self._broke_contract = False
            self._backoff.reset()
            self._cancel_expiry()

    def _take_rejection(self, rejection: Rejection) -> None:
        found = self._requests.find(rejection.request_id)
        if found is None:
            return
        # Unless one accepted it earlier, no engine core has: the next one's queue limits apply to it.
        found.was_sent = found.message.resumed
        problem = _PROBLEM_OF_NOTICE.get(rejection.error.reason, "") if isinstance(rejection.error, Unavailable) else ""
        if problem:
            self.is_draining |= problem == DRAINING
            self._set_problem(problem)
            if not is_pinned(found) and self.observer is not None and self.observer.place_elsewhere(self, [found]):
                self._requests.forget(rejection.request_id)
                return
        if problem != DRAINING:
            self._requests.forget(rejection.request_id)
            self._sink.fail(found.sequence, rejection.error)
        else:
            self._requests.refuse(rejection.request_id)

    def _on_ready(self, info: EngineInfo) -> None:
        if info.epoch in self._replaced_epochs:
            # A process that woke up does not know what its successor did. Epochs are not compared by size: clocks may be set.
            raise ProtocolError(f"The engine core of epoch {info.epoch} was replaced by another one.")
        if not self._broke_contract:
            # Else it must prove itself first: an engine that greets well and talks nonsense would be tried for ever.
            self._backoff.reset()
            self._cancel_expiry()
        is_another = self.info is not None and info.epoch != self.info.epoch
        if self.info is not None and is_another:
            self._replaced_epochs.add(self.info.epoch)
        self.is_draining = False
        self.info = info
        self.num_sessions += 1
        self.since = time.time()
        num_resumed = self._requests.begin_session(is_another_engine=is_another)
        self._ready.set()
        log.info(
            "engine.connected",
            target=self.target,
            epoch=info.epoch,
            contract_revision=info.contract_revision,
            num_resumed=num_resumed,
        )
        self._set_problem("")

    def _on_lost(self, *, is_broken: bool) -> None:
        if not self.connected:
            return
        log.warning("engine.lost", target=self.target, reason=str(self._lost_reason), num_unfinished=self.num_unfinished)
        self._ready.clear()
        self.since = time.time()
        by_transport = isinstance(self._lost_reason, TransportError)
        self._requests.end_session(is_broken=is_broken, by_transport=by_transport)
        self.load.note_lost()
        self._start_expiry()
        self._set_problem("not connected")
        if self.observer is not None:
            self.observer.on_lost(self)

    def _set_problem(self, problem: str) -> None:
        self.problem = problem
        if self.observer is not None:
            self.observer.on_change()

    def _start_expiry(self) -> None:
        if self._expiry is None:
            self._expiry = RunningTimer(self._recovery_timeout_s, self._expire)

    def _cancel_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def _expire(self) -> None:
        """Fail what waits; new requests are refused until an engine answers."""
        self._cancel_expiry()
        self._requests.fail_all(self._unavailable())

    def _unavailable(self) -> Unavailable:
        text = f"The engine core at {self.target} has been away for more than {self._recovery_timeout_s:g} s; try again later."
        return Unavailable(text, retry_after_s=self._recovery_timeout_s)
