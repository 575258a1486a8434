"""EngineOutgoing: queues the adds and aborts of requests that have not been sent to an engine core yet.

An engine client's requests fill it, its session's writer empties it: requests that arrive together share messages. Requests
that were sent to any engine core before are resumed instead of started. One event loop.

Messages have a bounded size. Sizes are those of encoded messages, measured once per request. All outputs of a client's request
have the same sampling parameters: a message holds these once, and the requests refer to them. The tensors of images are sent
once in a session, as far as possible (sent_media.py).
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator

from tetrad.frontend.engine.client_sequence import OVERHEAD_BYTES, ActiveSequence, SharedParams
from tetrad.frontend.engine.sent_media import SentMedia
from tetrad.frontend.engine.session_client import EngineSession
from tetrad.frontend.engine.wire import add_feature, set_embeds, set_resumed, set_time_left
from tetrad.frontend.media.features import MediaFeature
from tetrad.frontend.net.batching import batch_complete
from tetrad.services.errors import TetradError
from tetrad.services.log import get_logger
from tetrad.services.message_size import BATCH_BYTES, batches
from tetrad.services.timers.time_slice import TimeSlice
from tetrad.v1 import engine_core_pb2

log = get_logger()

_ENTRY_BYTES = 16
"""Upper bound of the bytes that a message adds to an id: tag and length."""


class AddMessage:
    """One AddRequests message under construction.

    Args:
        media: the tensors sent in this session.
        shares: whether the engine core supports parameters that several requests share.
        most_bytes: size of the largest message that the engine core reads.

    Attributes:
        requests: the requests in the message.
        num_bytes: upper bound of its encoded size.
    """

    def __init__(self, media: SentMedia, *, shares: bool, most_bytes: int) -> None:
        self.requests: list[ActiveSequence] = []
        self.num_bytes = OVERHEAD_BYTES
        self._features: list[tuple[MediaFeature, ...]] = []  # of each request
        self._media, self._shares, self._most_bytes = media, shares, most_bytes
        self._is_large, self._room_bytes = False, min(BATCH_BYTES, most_bytes)
        self._indices: dict[SharedParams, int] = {}

    def try_add(self, each: ActiveSequence) -> bool:
        """Add a request and return True; return False if the message is full. The first request always fits."""
        is_held = self._shares and each.params in self._indices
        features = self._media.choose(each) if each.features else ()
        num_bytes = each.num_own_bytes(features) + (0 if is_held else each.params.num_bytes + OVERHEAD_BYTES)
        if self.requests and (self.num_bytes + num_bytes > self._room_bytes or (self._is_large and not is_held)):
            return False
        if not self.requests and num_bytes > BATCH_BYTES:
            # Sequences that share such large parameters go into one message instead of repeating them; others do not join.
            self._is_large, self._room_bytes = True, min(num_bytes + BATCH_BYTES, self._most_bytes)
        if each.params.message is not None:
            self._indices.setdefault(each.params, len(self._indices))
        self.requests.append(each)
        self._features.append(features)
        if features:
            self._media.note_sent(each, features)
        self.num_bytes += num_bytes
        return True

    async def encode(self) -> engine_core_pb2.SessionRequest:
        """Return the encoded message."""
        time_slice = TimeSlice()
        message = engine_core_pb2.SessionRequest()
        if self._shares:
            message.add.shared_sampling_params.extend(params.message for params in self._indices if params.message is not None)
        for each, features in zip(self.requests, self._features, strict=True):
            await time_slice.check()
            request = message.add.requests.add()
            request.CopyFrom(each.message)
            request.prompt_token_ids = each.prompt_token_ids
            if each.embeds is not None:
                set_embeds(request, each.embeds)
            for feature in features:
                add_feature(request, feature)
                await time_slice.check()
            set_time_left(request, each.sequence)
            if each.params.message is None:
                continue
            if self._shares:
                request.sampling_params_index = self._indices[each.params]
            else:
                request.sampling_params.CopyFrom(each.params.message)
                request.sampling_params.seed = request.seed
        return message


def add_messages(
    requests: Iterable[ActiveSequence], media: SentMedia, *, shares: bool, most_bytes: int
) -> Iterator[AddMessage]:
    """Yield messages with all requests, in order.

    Args:
        requests: the requests; each fits a message.
        media: the tensors sent in this session.
        shares: whether the engine core supports parameters that several requests share.
        most_bytes: size of the largest message that the engine core reads.
    """
    message = AddMessage(media, shares=shares, most_bytes=most_bytes)
    for each in requests:
        if not message.try_add(each):
            yield message
            message = AddMessage(media, shares=shares, most_bytes=most_bytes)
            message.try_add(each)
    if message.requests:
        yield message


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
