"""Prefill: the first phase of one request, in which a producer computes its prompt; its sequences wait for the result.

To the sequences it is the engine core that runs them, so a client's abort ends the phase. One event loop; it decides nothing
about what follows.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from tetrad.frontend.engine.client import EngineClient
from tetrad.frontend.engine.client_sequence import ActiveSequence
from tetrad.frontend.request.steps import RichUpdate
from tetrad.services.errors import TetradError

OnResult = Callable[["Prefill", list[ActiveSequence], RichUpdate | TetradError], None]


class Prefill:
    """One first phase.

    Args:
        probe: the producer's request.
        producer: the engine core that computes the prompt.
        consumer: the engine core that is to run the sequences afterwards.
        waiting: the sequences of the request.
        on_result: called with the sequences that still wait and the probe's last output, or the error that ended it.
        on_end: called before, and also if the phase ends with its sequences.

    Attributes:
        probe, producer, consumer: see Args.
    """

    def __init__(
        self,
        probe: ActiveSequence,
        producer: EngineClient,
        consumer: EngineClient,
        waiting: Sequence[ActiveSequence],
        on_result: OnResult,
        on_end: Callable[["Prefill"], None],
    ) -> None:
        self.probe, self.producer, self.consumer = probe, producer, consumer
        self._waiting = {each.sequence.request_id: each for each in waiting}
        self._on_result, self._on_end = on_result, on_end
        self._timer: asyncio.TimerHandle | None = None
        self._num_expected = len(waiting)
        consumer.load.num_expected += self._num_expected

    def expire_after(self, delay_s: float, expire: Callable[[], None]) -> None:
        """Call `expire` in `delay_s` seconds, unless the phase has ended by then."""
        self._timer = asyncio.get_running_loop().call_later(delay_s, expire)

    def finish(self, last: RichUpdate) -> None:
        """End the phase with the probe's last output."""
        self._on_result(self, self._end(is_answered=True), last)

    def fail(self, error: TetradError) -> None:
        """End the phase with an error; the producer stops to compute."""
        self._on_result(self, self._end(is_answered=False), error)

    def _end(self, *, is_answered: bool) -> list[ActiveSequence]:
        if self._timer is not None:
            self._timer.cancel()
        request_id = self.probe.sequence.request_id
        if not is_answered:
            self.producer.abort([request_id])
        self.producer.forget(request_id)
        self.consumer.load.num_expected -= self._num_expected
        self._on_end(self)
        waiting, self._waiting = list(self._waiting.values()), {}
        return waiting

    # --- the engine core of the waiting sequences -------------------------------------------------------------------

    def abort(self, request_ids: Iterable[str]) -> None:
        """See Engine: `forget`, which follows, does it."""

    def forget(self, request_id: str) -> None:
        """Remove a sequence that has ended; with the last one the phase ends."""
        if self._waiting.pop(request_id, None) is not None and not self._waiting:
            self._end(is_answered=False)
