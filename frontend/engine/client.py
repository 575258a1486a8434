"""EngineClient: connects to one engine core and keeps its requests (client_requests.py) over all sessions.

When a session breaks, the client opens another with back-off and sends every unfinished request again, with its tokens so far.
After `recovery_timeout_s` without a working engine core they fail with Unavailable. One event loop; knows no text. Invariant:
a step is applied completely before the session counts as lost, so a request resumes exactly after its client's tokens.
"""

import asyncio
import time
from collections.abc import Iterable
from typing import Protocol

from tetrad.frontend.engine.client_requests import EngineRequests, is_pinned
from tetrad.frontend.engine.client_sequence import ActiveSequence
from tetrad.frontend.engine.facts import EngineInfo
from tetrad.frontend.engine.link import EngineLink
from tetrad.frontend.engine.load_estimate import LoadEstimate
from tetrad.frontend.engine.sent_media import MM_CACHE_MISS
from tetrad.frontend.engine.session_client import EngineInbox, EngineSession, Notice, ProtocolError, Rejection, TransportError
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
        """Process the outputs of one step; the next step is read after this returns."""

    async def settle(self, engine_index: int) -> None:
        """Wait until the outputs of all steps of an engine have been applied; raises the error of a failed step."""

    def fail(self, sequence: Sequence, error: TetradError) -> None:
        """End a sequence with an error."""


class EngineObserver(Protocol):
    """Receiver of an engine core's changes of state."""

    def on_change(self) -> None:
        """Handle a change: an engine was connected or lost, or its problem changed."""

    def on_lost(self, engine: "EngineClient") -> None:
        """Handle the loss of an open session."""

    def on_given_up(self, engine: "EngineClient") -> None:
        """Send the requests of a lost engine core to others if they can take them; the rest fails then."""

    def place_elsewhere(self, engine: "EngineClient", requests: list[ActiveSequence]) -> bool:
        """Send requests that `engine` no longer has to another engine core; return False if none can take them."""


class EngineClient:
    """The client of one engine core.

    Args:
        target: address of the engine core.
        link: link to the engine core; the client owns and closes it.
        sink: receives outputs and failures.
        recovery_timeout_s: how long requests wait for a lost engine core, in seconds.
        number: this frontend's number of the engine core, which its steps get; the engine cores' own numbers may be equal.
        max_message_bytes: size of the largest message that the link reads and writes.

    Attributes:
        number: see Args.
        load: the engine core's load.
        is_draining: whether the engine core has announced its end; it is not expected to return after its loss.
        problem: why the engine core makes no progress now, for operators and clients; empty if it has no problem.
        observer: receives changes of state; the pool sets it.
        since: time of the last opening or loss of a session, in seconds of the wall clock.
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
        self.load = LoadEstimate()
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
        """Whether the engine core has been lost for longer than the recovery timeout, so that requests are refused."""
        return not self.connected and self._expiry is None

    @property
    def max_message_bytes(self) -> int:
        """The size of the largest message to the engine core, in bytes."""
        return self._max_message_bytes if self.info is None else min(self._max_message_bytes, self.info.max_message_bytes)

    @property
    def num_unfinished(self) -> int:
        """The number of unfinished sequences of this engine core."""
        return len(self._requests)

    def start(self) -> None:
        """Start to connect, in a task."""
        self._task = asyncio.create_task(self._run(), name=f"engine session {self.target}")

    async def wait_ready(self) -> EngineInfo:
        """Wait for the first session and return the engine core's facts; FailedPrecondition if there can never be one."""
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
        """Send a request, with others that arrive together in one message; Unavailable if `given_up`.

        Args:
            active: the sequence that receives the outputs, and its message. If another engine core may have accepted it, this
                one continues after the existing tokens.
        """
        if self.given_up:
            raise self._unavailable()
        self.load.note_sent(active.sequence.request_id)
        self._requests.add(active)

    def release(self) -> list[ActiveSequence]:
        """Remove and return the requests of this lost engine core that another one may run."""
        return self._without_load(self._requests.release())

    def release_refused(self) -> list[ActiveSequence]:
        """Remove and return the requests that this draining engine core refused and another one may run."""
        return self._without_load(self._requests.release_refused())

    def forget(self, request_id: str) -> None:
        """Remove a finished sequence."""
        self._requests.forget(request_id)
        self.load.note_ended(request_id)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Send aborts of sequences to the engine core; the caller then calls `forget`. Unknown ids are ignored."""
        for request_id in request_ids:
            self._requests.abort(request_id)

    def stop(self) -> None:
        """End the session and refuse new requests from now on; `close` follows."""
        self._cancel_expiry()
        self._requests.close()
        self._ready.clear()
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """End the session; the engine core aborts its unfinished requests."""
        self.stop()
        if self._task is not None:
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
                    # Another contract revision: only a new engine core can help, so the waiting requests do not wait for it.
                    self._expire()
                    if self.info is None:
                        raise
            except Exception as error:  # an unexpected exception must not end this task: the requests need an engine core
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
        except TetradError:
            if writer is not None and writer.done() and not writer.cancelled():
                writer.result()  # raise the unexpected exception that ended the session, if there is one
            raise
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
        """Apply the engine core's own facts in a step: its load."""
        step.engine_index = self.number
        if step.scheduler is not None:
            self.load.note_report(step.scheduler)

    def _note_progress(self) -> None:
        """Record that the session has received a valid message."""
        if self._broke_contract:
            self._broke_contract = False
            self._backoff.reset()
            self._cancel_expiry()

    def _without_load(self, released: list[ActiveSequence]) -> list[ActiveSequence]:
        for each in released:
            self.load.note_ended(each.sequence.request_id)
        return released

    def _take_rejection(self, rejection: Rejection) -> None:
        found = self._requests.find(rejection.request_id)
        if found is None:
            return
        # Unless an engine core accepted it earlier, the request is new: the queue limits of the next one apply to it.
        found.was_sent = found.message.resumed
        if rejection.error.reason == MM_CACHE_MISS and self._requests.outgoing.try_add_with_media(found):
            return
        if found.try_without_transfer(rejection.error):
            log.warning("request.transfer_refused", target=self.target, reason=rejection.error.message)
            self._requests.outgoing.add([found])
            return
        problem = _PROBLEM_OF_NOTICE.get(rejection.error.reason, "") if isinstance(rejection.error, Unavailable) else ""
        if problem:
            self.is_draining |= problem == DRAINING
            self._set_problem(problem)
            if not is_pinned(found) and self.observer is not None and self.observer.place_elsewhere(self, [found]):
                self._requests.hand_over(rejection.request_id)
                self.load.note_ended(rejection.request_id)
                return
        if problem != DRAINING or not found.may_wait:
            self._requests.forget(rejection.request_id)
            self._sink.fail(found.sequence, rejection.error)
        else:
            self._requests.refuse(rejection.request_id)

    def _on_ready(self, info: EngineInfo) -> None:
        if info.epoch in self._replaced_epochs:
            # A suspended process that continues does not know its successor's work. Epochs are not ordered: clocks may change.
            raise ProtocolError(f"The engine core of epoch {info.epoch} was replaced by another one.")
        if not self._broke_contract:
            # Otherwise a valid message must come first: an engine core that only answers Hello would be retried for ever.
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
        """Fail all waiting requests that no other engine core can take; new ones are refused until an engine core answers.

        If one is connected, which broke the contract before, requests that arrived since then have not waited for it.
        """
        self._cancel_expiry()
        if not self.connected and self.observer is not None:
            self.observer.on_given_up(self)
        self._requests.fail_all(self._unavailable())

    def _unavailable(self) -> Unavailable:
        text = f"The engine core at {self.target} has been away for more than {self._recovery_timeout_s:g} s; try again later."
        return Unavailable(text, retry_after_s=self._recovery_timeout_s)
