"""OutputCollector: a slot for one output between the output processor and one caller.

If the caller is slower than the engine, its outputs are merged in the slot, so a slow client never delays a step and never
costs more memory than its own text. One event loop; no locks.
"""

import asyncio
from collections.abc import Callable

from tetrad.frontend.request.outputs import RequestOutput, merge, places_of
from tetrad.services.errors import TetradError


class OutputCollector:
    """The output slot of one request.

    Args:
        aggregate: append new outputs (DELTA) rather than replace the old ones.
    """

    __slots__ = ("_aggregate", "_error", "_note_ready", "_output", "_places", "_ready")

    def __init__(self, *, aggregate: bool) -> None:
        self._aggregate = aggregate
        self._output: RequestOutput | None = None
        # The place of each output index: one step may put the outputs of 1,024 sequences, one by one.
        self._places: dict[int, int] | None = None
        self._error: TetradError | None = None
        self._ready = asyncio.Event()
        self._note_ready: Callable[[], None] | None = None

    def call_when_ready(self, note_ready: Callable[[], None]) -> None:
        """Call `note_ready` once for each output and for a failure, when `get` returns or raises it without waiting."""
        self._note_ready = note_ready
        if self._output is not None:
            note_ready()
        if self._error is not None:
            note_ready()

    def put(self, output: RequestOutput) -> None:
        """Deliver an output; it is merged into an output that has not been fetched yet."""
        if self._output is None:
            self._output = output
            self._set_ready()
            return
        if self._places is None:
            self._places = places_of(self._output)
        merge(self._output, output, self._places, aggregate=self._aggregate)

    def fail(self, error: TetradError) -> None:
        """Deliver the request's failure; `get` raises it after the earlier outputs have been fetched."""
        self._error = error
        self._set_ready()

    async def get(self) -> RequestOutput:
        """Wait for the next output; raises the request's failure."""
        while self._output is None:
            if self._error is not None:
                raise self._error
            await self._ready.wait()
        return self._take()

    def get_nowait(self) -> RequestOutput | None:
        """Return the next output, None if there is none; raises the request's failure."""
        if self._output is None:
            if self._error is not None:
                raise self._error
            return None
        return self._take()

    def _set_ready(self) -> None:
        self._ready.set()
        if self._note_ready is not None:
            self._note_ready()

    def _take(self) -> RequestOutput:
        output, self._output, self._places = self._output, None, None
        if self._error is None:
            self._ready.clear()
        assert output is not None
        return output
