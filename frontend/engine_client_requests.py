"""EngineRequests: what one engine core is to bring to an end, over all its sessions.

Owned by the engine client, which says when a session begins and breaks. Knows whom the engine was sent, who waits for another's
trial, and whom it refused because it is leaving; knows no streams and no text. One event loop.
"""

from collections.abc import Callable

from tetrad.frontend.engine_client_outgoing import EngineOutgoing, Unfinished
from tetrad.frontend.engine_trials import EngineTrials
from tetrad.frontend.refused_requests import RefusedRequests
from tetrad.frontend.sequence import Sequence
from tetrad.services.errors import PoisonousRequest, TetradError, Unavailable
from tetrad.services.log import get_logger
from tetrad.v1 import engine_core_pb2

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
        self.outgoing = EngineOutgoing()
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
        self._refused.clear()
        may_go = self._trials.begin(sequence for sequence, _ in self._unfinished.values())
        num_resumed = self.outgoing.begin_session(self._unfinished[each.request_id] for each in may_go)
        self._is_connected = True
        return num_resumed

    def end_session(self, *, is_broken: bool) -> None:
        """Keep everything for the next session. `is_broken`: the engine may have died of what it was sent."""
        self._has_broken |= is_broken
        self._is_connected = False
        self._refused.clear()

    def close(self) -> None:
        """Wait for nothing more."""
        self._refused.clear()

    # --- requests ---------------------------------------------------------------------------------------------------

    def add(self, sequence: Sequence, request: engine_core_pb2.EngineCoreRequest, *, was_sent: bool = False) -> None:
        """Send a request with the others of its burst, or with the next session; `was_sent`: to another engine before."""
        if was_sent:
            self.outgoing.note_sent(sequence.request_id)
        self._unfinished[sequence.request_id] = (sequence, request)
        if self._is_connected and not self._trials.hold(sequence):
            self.outgoing.add([(sequence, request)])

    def forget(self, request_id: str) -> None:
        """Drop a finished sequence."""
        self._unfinished.pop(request_id, None)
        self.outgoing.forget(request_id)
        self._trials.forget(request_id)
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
        for sequence, _ in released:
            self._trials.give_up(sequence.request_id)
            self.forget(sequence.request_id)
        return released

    def fail_all(self, error: TetradError) -> None:
        """Fail every request."""
        for sequence, _ in list(self._unfinished.values()):
            # By an abort, should the engine be there after all: it must not go on for nobody.
            self._fail(sequence, error)
            self.abort(sequence.request_id)

    def go_on(self) -> None:
        """Send what waited for the end of a trial, if that is over."""
        if self._is_connected and (may_go := self._trials.advance()):
            self.outgoing.add(self._unfinished[each.request_id] for each in may_go)

    def _judge(self) -> None:
        """Note that an engine core died with all it had been sent; end the request that it died of, if that is known now."""
        lost = [sequence for sequence, _ in self._unfinished.values() if self.outgoing.was_sent(sequence.request_id)]
        for sequence in self._trials.note_loss(lost):
            text = f"{sequence.num_engine_losses} engine cores in a row died while this request ran. Do not send it again."
            log.error("request.convicted", **sequence.span.context.log_fields(sequence.request_id), target=self._target)
            self.forget(sequence.request_id)
            self._fail(sequence, PoisonousRequest(text))

    def _fail_refused(self, request_id: str) -> None:
        sequence, _ = self._unfinished[request_id]
        patience = f"{self._recovery_timeout_s:g} s"
        text = f"The engine core at {self._target} is shutting down and was not replaced within {patience}; try again later."
        self._fail(sequence, Unavailable(text, retry_after_s=self._recovery_timeout_s))
        self.forget(request_id)


def is_pinned(unfinished: Unfinished) -> bool:
    """Return whether a request may run on its engine alone."""
    return unfinished[1].HasField("data_parallel_rank")
