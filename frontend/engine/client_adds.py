"""AddRequests messages: packs the requests for an engine core into messages of bounded size.

Called by the writer of an engine's session. Sizes are those of encoded messages, measured once per request. All outputs of a
client's request have the same sampling parameters: a message holds these once, and the requests refer to them. The tensors of
images are sent once in a session, as far as possible (sent_media.py).
"""

from collections.abc import Iterable, Iterator

from tetrad.frontend.engine.client_sequence import OVERHEAD_BYTES, ActiveSequence, SharedParams
from tetrad.frontend.engine.sent_media import SentMedia
from tetrad.frontend.engine.wire import add_feature, set_embeds, set_time_left
from tetrad.frontend.media.features import MediaFeature
from tetrad.services.message_size import BATCH_BYTES
from tetrad.services.timers.time_slice import TimeSlice
from tetrad.v1 import engine_core_pb2


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
