"""EngineOutgoing: what an engine core still has to be told by this frontend: requests to take, requests to drop.

Filled by an engine's requests, emptied by its session's writer: what comes together travels in one message. Knows which
requests any engine core was told of, this one or one before: those are resumed rather than new. One event loop.
"""

import asyncio
from collections.abc import Iterable

from tetrad.frontend.bursts import end_of_burst
from tetrad.frontend.engine_session_client import EngineSession
from tetrad.frontend.sequence import Sequence
from tetrad.frontend.wire import resume
from tetrad.services.errors import TetradError
from tetrad.services.log import get_logger
from tetrad.v1 import engine_core_pb2

log = get_logger()

Unfinished = tuple[Sequence, engine_core_pb2.EngineCoreRequest]


class EngineOutgoing:
    """Adds and aborts of one engine core."""

    def __init__(self) -> None:
        self._adds: dict[str, engine_core_pb2.EngineCoreRequest] = {}
        self._aborts: list[str] = []
        self._sent: set[str] = set()
        self._is_due = asyncio.Event()

    def add(self, requests: Iterable[Unfinished]) -> None:
        """Send requests with the others of their burst; behind their tokens if an engine core knew them."""
        for sequence, request in requests:
            was_sent = sequence.request_id in self._sent
            self._adds[sequence.request_id] = resume(request, sequence) if was_sent else request
            if was_sent:
                sequence.span.add_event("resumed", {"num_output_tokens": len(sequence.output_token_ids)})
            self._is_due.set()

    def abort(self, request_id: str) -> None:
        """Let the engine core drop a request, if it was told of it in this session."""
        if self._adds.pop(request_id, None) is None:
            self._aborts.append(request_id)
            self._is_due.set()

    def begin_session(self, requests: Iterable[Unfinished]) -> int:
        """Forget what the last session was to be told, and send these again; return how many they are."""
        self._adds, self._aborts = {}, []
        self.add(requests)
        return len(self._adds)

    def note_sent(self, request_id: str) -> None:
        """Note that an engine core was told of a request."""
        self._sent.add(request_id)

    def was_sent(self, request_id: str) -> bool:
        """Return whether an engine core was told of a request."""
        return request_id in self._sent

    def forget(self, request_id: str) -> None:
        """Drop a request that has ended."""
        self._sent.discard(request_id)

    async def write(self, session: EngineSession) -> None:
        """Tell a session what there is, whenever there is something, until it breaks."""
        try:
            while True:
                await self._is_due.wait()
                # What is told together begins in one step; one by one, each would have a step of its own, which takes the
                # cores from those that are still being read.
                await end_of_burst(lambda: len(self._adds))
                self._is_due.clear()
                adds, self._adds = self._adds, {}
                aborts, self._aborts = self._aborts, []
                self._sent.update(adds)
                await session.send(adds.values(), aborts)
        except TetradError as error:
            # The reader ends with this call, when it has applied the step in hand.
            log.debug("engine.write_failed", reason=str(error))
            session.cancel()
