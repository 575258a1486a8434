"""EngineRequests: the unfinished requests of one engine core, over all its sessions.

Owned by the engine client, which says when a session begins and breaks. Knows whom the engine was sent, who waits for another's
trial, and whom it refused because it is leaving; knows no streams and no text. One event loop.
"""

from collections.abc import Callable

from tetrad.frontend.engine.client_adds import Unfinished
from tetrad.frontend.engine.client_outgoing import EngineOutgoing
from tetrad.frontend.engine.crash_isolation import EngineTrials
from tetrad.frontend.engine.message_losses import LOSSES_TO_FAIL, MessageLosses
from tetrad.frontend.engine.refused_requests import RefusedRequests
from tetrad.frontend.request.sequence import Sequence
from tetrad.services.errors import InvalidRequest, PoisonousRequest, TetradError, Unavailable
from tetrad.services.log import get_logger
from tetrad.services.message_size import too_large

log = get_logger()


class EngineRequests:
    """The unfinished requests of one engine core.

    Args:
        target: its address.
        fail: ends a sequence with an error.
        recovery_timeout_s: how long what a leaving engine refused waits for its successor.

    Attributes:
        outgoing: what the engine is still to be told; emptied by each session's writer.
    """

    def __init__(self, target: str, fail: Callable[[Sequence, TetradError], None], *, recovery_timeout_s: float) -> None:
        self._losses = MessageLosses()
        self.outgoing = EngineOutgoing(self._losses.note_sent, self._refuse_too_large)
        self._target = target
        self._fail = fail
        self._recovery_timeout_s = recovery_timeout_s
        self._unfinished: dict[str, Unfinished] = {}
        self._refused = RefusedRequests(recovery_timeout_s, self._fail_refused)
        self._trials = EngineTrials()
        self._is_connected = False
        self._has_broken = False

    def __len__(self) -> int:
        return len(self._unfinished)

    def find(self, request_id: str) -> Unfinished | None:
        """Return a request; None: it has ended."""
        return self._unfinished.get(request_id)

    # --- sessions ---------------------------------------------------------------------------------------------------

    def begin_session(self, *, is_another_engine: bool) -> int:
        """Send what is unfinished to the engine that has come, behind the tokens that exist; return how many go at once."""
        if self._has_broken and is_another_engine:
            self._judge()
        self._has_broken = False
        for each in self._losses.begin(is_another_engine=is_another_engine):
            self._fail_unreadable(each)
        self._refused.clear()
        may_go = self._trials.begin(each.sequence for each in self._unfinished.values())
        num_resumed = self.outgoing.begin_session(self._unfinished[each.request_id] for each in may_go)
        self._is_connected = True
        return num_resumed

    def end_session(self, *, is_broken: bool, by_transport: bool) -> None:
        """Keep everything for the next session.

        Args:
            is_broken: the engine may have died of what it was sent.
            by_transport: the session ended as it does over a message that is too large.
        """
        self._has_broken |= is_broken
        self._losses.note_loss(by_transport=by_transport)
        self._is_connected = False
        self._refused.clear()

    def close(self) -> None:
        """Wait for nothing more."""
        self._refused.clear()

    # --- requests ---------------------------------------------------------------------------------------------------

    def add(self, unfinished: Unfinished, *, was_sent: bool = False) -> None:
        """Send a request with the others of its burst, or with the next session; `was_sent`: to another engine before."""
        sequence = unfinished.sequence
        if was_sent:
            self.outgoing.note_sent(sequence.request_id)
        self._unfinished[sequence.request_id] = unfinished
        if self._is_connected and not self._trials.hold(sequence):
            self.outgoing.add([unfinished])

    def forget(self, request_id: str) -> None:
        """Drop a finished sequence."""
        self._unfinished.pop(request_id, None)
        self.outgoing.forget(request_id)
        self._trials.forget(request_id)
        self._losses.forget(request_id)
        self.go_on()
        self._refused.discard(request_id)

    def abort(self, request_id: str) -> None:
        """Drop a sequence and tell the engine; an unknown id is ignored."""
        if request_id not in self._unfinished:
            return
        self.forget(request_id)
        if self._is_connected:
            self.outgoing.abort(request_id)

    def refuse(self, request_id: str) -> None:
        """Keep what the engine did not take, as it is leaving, for its successor. What it runs is not concerned."""
        self._refused.add(request_id)

    def release(self) -> list[Unfinished]:
        """Give the requests up that an engine which is lost need not have for its own: those that are not pinned to it.

        It may have died of one of them: whoever goes on with that is to know.
        """
        if self._has_broken:
            self._has_broken = False
            self._judge()
        released = [each for each in self._unfinished.values() if not is_pinned(each)]
        for each in released:
            self._trials.give_up(each.sequence.request_id)
            self.forget(each.sequence.request_id)
        return released

    def fail_all(self, error: TetradError) -> None:
        """Fail every request."""
        for each in list(self._unfinished.values()):
            # By an abort, should the engine be there after all: it must not go on for nobody.
            self._fail(each.sequence, error)
            self.abort(each.sequence.request_id)

    def go_on(self) -> None:
        """Send what waited for the end of a trial, if that is over."""
        if self._is_connected and (may_go := self._trials.advance()):
            self.outgoing.add(self._unfinished[each.request_id] for each in may_go)

    def _judge(self) -> None:
        """Note that an engine core died with all it had been sent; end the request that it died of, if that is known now."""
        sequences = [each.sequence for each in self._unfinished.values()]
        lost = [sequence for sequence in sequences if self.outgoing.was_sent(sequence.request_id)]
        for sequence in self._trials.note_loss(lost):
            text = f"{sequence.num_engine_losses} engine cores in a row died while this request ran. Do not send it again."
            log.error("request.convicted", **sequence.span.context.log_fields(sequence.request_id), target=self._target)
            self.forget(sequence.request_id)
            self._fail(sequence, PoisonousRequest(text))

    def _refuse_too_large(self, unfinished: Unfinished, limit: int) -> None:
        """End a request that was admitted for another engine core, which reads larger messages."""
        self._end(unfinished, too_large("The request, with what is generated,", unfinished.num_bytes, limit))

    def _fail_unreadable(self, unfinished: Unfinished) -> None:
        size = unfinished.num_bytes
        text = (
            f"The connection to the engine core at {self._target} broke {LOSSES_TO_FAIL} times over this request's message,"
            f" which has {size} bytes. Make the request smaller."
        )
        self._end(unfinished, InvalidRequest(text, reason="MESSAGE_TOO_LARGE"))

    def _end(self, unfinished: Unfinished, error: TetradError) -> None:
        """Fail one request, whose engine core does not have it."""
        sequence = unfinished.sequence
        log.error("request.unsendable", **sequence.span.context.log_fields(sequence.request_id), reason=error.message)
        self.forget(sequence.request_id)
        self._fail(sequence, error)

    def _fail_refused(self, request_id: str) -> None:
        sequence = self._unfinished[request_id].sequence
        patience = f"{self._recovery_timeout_s:g} s"
        text = f"The engine core at {self._target} is shutting down and was not replaced within {patience}; try again later."
        self._fail(sequence, Unavailable(text, retry_after_s=self._recovery_timeout_s))
        self.forget(request_id)


def is_pinned(unfinished: Unfinished) -> bool:
    """Return whether a request may run on its engine alone."""
    return unfinished.request.HasField("data_parallel_rank")
