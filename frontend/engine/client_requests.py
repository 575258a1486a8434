"""EngineRequests: keeps the unfinished requests of one engine core over all its sessions.

Owned by the engine client, which reports opened and broken sessions. Tracks which requests were sent, which wait while a
suspect runs alone, and which a draining engine core refused: these wait a limited time for its successor. Knows no streams and
no text. One event loop.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from tetrad.frontend.engine.client_outgoing import EngineOutgoing
from tetrad.frontend.engine.client_sequence import ActiveSequence
from tetrad.frontend.engine.crash_isolation import LOSSES_TO_FAIL, CrashIsolation, MessageLosses
from tetrad.frontend.request.sequence import Sequence
from tetrad.services.errors import InvalidRequest, PoisonousRequest, TetradError, Unavailable
from tetrad.services.log import get_logger
from tetrad.services.message_size import too_large
from tetrad.services.timers.running_time import RunningTimer

log = get_logger()


class RefusedRequests:
    """The ids, each with a timer.

    Args:
        patience_s: how long each request waits, in seconds.
        expire: called with the id of a request that has waited so long.
    """

    def __init__(self, patience_s: float, expire: Callable[[str], None]) -> None:
        self._patience_s = patience_s
        self._expire = expire
        self._timers: dict[str, RunningTimer] = {}

    def __iter__(self) -> Iterator[str]:
        """Iterate over the ids."""
        return iter(self._timers)

    def add(self, request_id: str) -> None:
        """Add a refused request and start its timer."""
        self.discard(request_id)
        self._timers[request_id] = RunningTimer(self._patience_s, partial(self._end, request_id))

    def discard(self, request_id: str) -> None:
        """Remove a request; no-op if it was not refused."""
        if timer := self._timers.pop(request_id, None):
            timer.cancel()

    def clear(self) -> None:
        """Remove all requests: the session has ended, and the next one receives them again."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _end(self, request_id: str) -> None:
        del self._timers[request_id]
        self._expire(request_id)


class EngineRequests:
    """The unfinished requests of one engine core.

    Args:
        target: address of the engine core.
        fail: ends a sequence with an error.
        recovery_timeout_s: how long requests that a draining engine core refused wait for its successor, in seconds.

    Attributes:
        outgoing: the queue of adds and aborts to send; each session's writer empties it.
    """

    def __init__(self, target: str, fail: Callable[[Sequence, TetradError], None], *, recovery_timeout_s: float) -> None:
        self._losses = MessageLosses()
        self.outgoing = EngineOutgoing(self._losses.note_sent, self._refuse_too_large)
        self._target = target
        self._fail = fail
        self._recovery_timeout_s = recovery_timeout_s
        self._unfinished: dict[str, ActiveSequence] = {}
        self._refused = RefusedRequests(recovery_timeout_s, self._fail_refused)
        self._isolation = CrashIsolation()
        self._is_connected = False
        self._has_broken = False
        self._resumed_ids: set[str] = set()

    def __len__(self) -> int:
        return len(self._unfinished)

    def find(self, request_id: str) -> ActiveSequence | None:
        """Return a request by its id; None: it has ended."""
        return self._unfinished.get(request_id)

    # --- sessions ---------------------------------------------------------------------------------------------------

    def begin_session(self, *, is_another_engine: bool) -> int:
        """Resume the unfinished requests on the connected engine core; return how many are sent at once."""
        if self._has_broken and is_another_engine:
            self._judge()
        self._has_broken = False
        for each in self._losses.begin(is_another_engine=is_another_engine):
            self._fail_unreadable(each)
        self._refused.clear()
        may_go = self._isolation.begin(each.sequence for each in self._unfinished.values())
        num_resumed = self.outgoing.begin_session(self._unfinished[each.request_id] for each in may_go)
        self._resumed_ids = set(self._unfinished)
        self._is_connected = True
        return num_resumed

    def end_session(self, *, is_broken: bool, by_transport: bool) -> None:
        """Record the end of the session; all requests are kept for the next one.

        Args:
            is_broken: whether a request may have crashed the engine core.
            by_transport: whether the session ended with the error that a too large message causes.
        """
        self._has_broken |= is_broken
        self._losses.note_loss(by_transport=by_transport)
        self._is_connected = False
        self._refused.clear()

    def close(self) -> None:
        """Cancel all timers."""
        self._refused.clear()

    # --- requests ---------------------------------------------------------------------------------------------------

    def add(self, active: ActiveSequence) -> None:
        """Send a request together with others that arrive at the same time; without a session, in the next one."""
        sequence = active.sequence
        self._unfinished[sequence.request_id] = active
        if self._is_connected and not self._isolation.hold(sequence):
            self.outgoing.add([active])

    def forget(self, request_id: str) -> None:
        """Remove a finished sequence."""
        active = self._unfinished.pop(request_id, None)
        if active is not None and active.features:
            self.outgoing.forget_media(active)
        self._isolation.forget(request_id)
        self._losses.forget(request_id)
        self.go_on()
        self._refused.discard(request_id)

    def hand_over(self, request_id: str) -> None:
        """Remove a request that continues on another engine core; its count of losses is kept."""
        self._isolation.give_up(request_id)
        self.forget(request_id)

    def abort(self, request_id: str) -> None:
        """Send the abort of a sequence; the caller then calls `forget`. An unknown id is ignored."""
        if self._is_connected and request_id in self._unfinished:
            self.outgoing.abort(request_id)

    def refuse(self, request_id: str) -> None:
        """Keep a request that the draining engine core refused, for its successor or for another engine core.

        Its running requests are not affected.
        """
        self._refused.add(request_id)

    def release(self) -> list[ActiveSequence]:
        """Remove and return the requests of a lost engine core that are not pinned to it.

        Their counts of losses are kept, because one of them may have crashed the engine core.
        """
        if self._has_broken:
            self._has_broken = False
            self._judge()
        return self._hand_over_all(self._unfinished.values())

    def release_refused(self) -> list[ActiveSequence]:
        """Remove and return the requests that the draining engine core refused and that are not pinned to it."""
        return self._hand_over_all(self._unfinished[request_id] for request_id in self._refused)

    def fail_all(self, error: TetradError) -> None:
        """Fail every request; in a session, only the requests that it began with."""
        failing = self._unfinished.keys() & self._resumed_ids if self._is_connected else self._unfinished
        for each in [self._unfinished[request_id] for request_id in failing]:
            # The abort is for an engine core that still runs: it must not compute a failed request.
            self._fail(each.sequence, error)
            self.abort(each.sequence.request_id)
            self.forget(each.sequence.request_id)

    def go_on(self) -> None:
        """Send the requests that waited for a suspect, if it has been cleared or has ended."""
        if self._is_connected and (may_go := self._isolation.advance()):
            self.outgoing.add(self._unfinished[each.request_id] for each in may_go)

    def _hand_over_all(self, requests: Iterable[ActiveSequence]) -> list[ActiveSequence]:
        """Remove and return those of these requests that another engine core may run."""
        found = [each for each in requests if not is_pinned(each)]
        for each in found:
            self.hand_over(each.sequence.request_id)
        return found

    def _judge(self) -> None:
        """Count the crash of an engine core for all requests sent to it; fail the request that causes crashes, if known."""
        lost = [each.sequence for each in self._unfinished.values() if each.was_sent]
        for sequence in self._isolation.note_loss(lost):
            text = f"{sequence.num_engine_losses} engine cores in a row died while this request ran. Do not send it again."
            log.error("request.failed_as_suspect", **sequence.span.context.log_fields(sequence.request_id), target=self._target)
            self.forget(sequence.request_id)
            self._fail(sequence, PoisonousRequest(text))

    def _refuse_too_large(self, active: ActiveSequence, limit: int) -> None:
        """Fail a request that is too large for this engine core; it was admitted for one that reads larger messages."""
        self._end(active, too_large("The request, with what is generated,", active.num_bytes, limit))

    def _fail_unreadable(self, active: ActiveSequence) -> None:
        size = active.num_bytes
        text = (
            f"The connection to the engine core at {self._target} broke {LOSSES_TO_FAIL} times over this request's message,"
            f" which has {size} bytes. Make the request smaller."
        )
        self._end(active, InvalidRequest(text, reason="MESSAGE_TOO_LARGE"))

    def _end(self, active: ActiveSequence, error: TetradError) -> None:
        """Fail a request that the engine core does not have."""
        sequence = active.sequence
        log.error("request.unsendable", **sequence.span.context.log_fields(sequence.request_id), reason=error.message)
        self.forget(sequence.request_id)
        self._fail(sequence, error)

    def _fail_refused(self, request_id: str) -> None:
        sequence = self._unfinished[request_id].sequence
        patience = f"{self._recovery_timeout_s:g} s"
        text = f"The engine core at {self._target} is shutting down and was not replaced within {patience}; try again later."
        self._fail(sequence, Unavailable(text, retry_after_s=self._recovery_timeout_s))
        self.forget(request_id)


def is_pinned(active: ActiveSequence) -> bool:
    """Return whether a request may run only on its present engine core."""
    return active.message.HasField("data_parallel_rank") or not active.may_wait
