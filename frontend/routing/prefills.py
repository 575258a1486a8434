"""Prefills: the first phases under way. Takes their outputs out of the engine cores' steps, and passes on all others.

A sink of steps before the output processor; knows probes' handles only.
"""

from tetrad.frontend.engine.client import DRAINING, StepSink
from tetrad.frontend.request.sequence import Sequence
from tetrad.frontend.request.steps import RichUpdate, Step
from tetrad.frontend.routing.prefill import Prefill
from tetrad.services.errors import TetradError, Unavailable


class Prefills:
    """The first phases of one frontend's requests.

    Args:
        sink: receives all outputs and failures of other sequences.
    """

    def __init__(self, sink: StepSink) -> None:
        self._sink = sink
        self._open: dict[int, Prefill] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, prefill: Prefill) -> None:
        """Take the outputs of a first phase from now on."""
        self._open[prefill.probe.sequence.handle] = prefill

    def remove(self, prefill: Prefill) -> None:
        """Forget a first phase that has ended."""
        self._open.pop(prefill.probe.sequence.handle, None)

    def note_change(self) -> None:
        """Fail the phases whose producer is lost or makes no progress; one that drains finishes what it has begun."""
        for each in list(self._open.values()):
            problem = each.producer.problem
            if problem not in ("", DRAINING):
                each.fail(Unavailable(f"The engine core at {each.producer.target} has a problem: {problem}."))

    async def process(self, step: Step) -> None:
        """Process one step; see StepSink."""
        if self._open:
            step.updates = [(handle, ids, rich) for handle, ids, rich in step.updates if not self._took(handle, rich)]
        await self._sink.process(step)

    async def settle(self, engine_index: int) -> None:
        """See StepSink."""
        await self._sink.settle(engine_index)

    def fail(self, sequence: Sequence, error: TetradError) -> None:
        """End a sequence with an error; the request of a failed probe goes on."""
        prefill = self._open.get(sequence.handle)
        if prefill is None:
            self._sink.fail(sequence, error)
        else:
            prefill.fail(error)

    def _took(self, handle: int, rich: RichUpdate | None) -> bool:
        """Return whether an output is that of a probe; its last one ends the phase."""
        prefill = self._open.get(handle)
        if prefill is None:
            return False
        if rich is not None and rich.error is not None:
            prefill.fail(rich.error)
        elif rich is not None and rich.finish_reason is not None:
            prefill.finish(rich)
        return True
