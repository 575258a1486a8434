"""EngineOutgoing: queues the adds and aborts of requests that have not been sent to an engine core yet.

An engine client's requests fill it, its session's writer empties it: requests that arrive together share messages
(client_adds.py). Requests that were sent to any engine core before are resumed instead of started. One event loop.
"""

import asyncio
from collections.abc import Callable, Iterable

from tetrad.frontend.engine.client_adds import AddMessage, add_messages
from tetrad.frontend.engine.client_sequence import ActiveSequence
from tetrad.frontend.engine.sent_media import SentMedia
from tetrad.frontend.engine.session_client import EngineSession
from tetrad.frontend.engine.wire import set_resumed
from tetrad.frontend.net.batching import batch_complete
from tetrad.services.errors import TetradError
from tetrad.services.log import get_logger
from tetrad.services.message_size import batches
from tetrad.v1 import engine_core_pb2

log = get_logger()

_ENTRY_BYTES = 16
"""Upper bound of the bytes that a message adds to an id: tag and length."""


class EngineOutgoing:
    """The queued adds and aborts of one engine core.

    Args:
        on_message: called with each message of requests before it is written.
        on_too_large: called with a request that is too large for a message to this engine core, and the limit.
    """

    def __init__(self, on_message: Callable[[AddMessage], None], on_too_large: Callable[[ActiveSequence, int], None]) -> None:
        self._on_message, self._on_too_large = on_message, on_too_large
        self._adds: dict[str, ActiveSequence] = {}
        self._aborts: list[str] = []
        self._media = SentMedia()
        self._is_due = asyncio.Event()

    def add(self, requests: Iterable[ActiveSequence]) -> None:
        """Queue requests, to be sent with others that arrive together. Requests sent before resume after their tokens."""
        for each in requests:
            sequence = each.sequence
            self._adds[sequence.request_id] = each
            if each.was_sent:
                set_resumed(each.message, sequence)
                sequence.span.add_event("resumed", {"num_output_tokens": len(sequence.output_token_ids)})
            self._is_due.set()

    def abort(self, request_id: str) -> None:
        """Remove a request from the queue; if it has been sent in this session, queue its abort."""
        if self._adds.pop(request_id, None) is None:
            self._aborts.append(request_id)
            self._is_due.set()

    def try_add_with_media(self, active: ActiveSequence) -> bool:
        """Queue a request again whose tensors the engine core lacked; return False if it was sent with all of them."""
        if not self._media.note_miss(active):
            return False
        self.add([active])
        return True

    def forget_media(self, active: ActiveSequence) -> None:
        """Note that no request may rely on the tensors of this one any more: it has ended or moved to another engine core."""
        self._media.forget(active)

    def begin_session(self, requests: Iterable[ActiveSequence]) -> int:
        """Clear the queue of the last session and queue these requests again; return their number."""
        self._adds, self._aborts = {}, []
        self._media.clear()
        self.add(requests)
        return len(self._adds)

    async def write(self, session: EngineSession) -> None:
        """Write queued adds and aborts to a session whenever there are any, until the session breaks.

        An unexpected exception ends the session and is raised.
        """
        try:
            while True:
                await self._is_due.wait()
                # Requests in one message start in one step. Sent one by one, each would have a step of its own, which takes CPU
                # time from the requests that are still being read.
                await batch_complete(lambda: len(self._adds))
                self._is_due.clear()
                adds, self._adds = self._adds, {}
                aborts, self._aborts = self._aborts, []
                await self._write_adds(session, adds.values())
                for request_ids in batches(aborts, lambda request_id: len(request_id.encode()) + _ENTRY_BYTES):
                    abort = engine_core_pb2.AbortRequests(request_ids=request_ids)
                    await session.send(engine_core_pb2.SessionRequest(abort=abort))
        except TetradError as error:
            # After this call the reader ends, too, when it has applied its current step.
            log.debug("engine.write_failed", reason=str(error))
            session.cancel()
        except Exception:
            # Without its writer, the session would stay open and keep all later requests.
            session.cancel()
            raise

    async def _write_adds(self, session: EngineSession, adds: Iterable[ActiveSequence]) -> None:
        most_bytes, fitting = session.max_message_bytes, []
        for each in adds:
            if each.num_bytes <= most_bytes:
                fitting.append(each)
            else:  # admitted for an engine core that reads larger messages
                self._on_too_large(each, most_bytes)
        for each in fitting:
            each.was_sent = True
        for message in add_messages(fitting, self._media, shares=session.shares_params, most_bytes=most_bytes):
            self._on_message(message)
            await session.send(await message.encode())
