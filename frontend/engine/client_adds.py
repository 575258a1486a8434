"""AddRequests messages: packs the requests for an engine core into messages of bounded size.

Called by the writer of an engine's session. Sizes are those of encoded messages, measured once for each request. All outputs of
a client's request have the same sampling parameters: a message holds these once, and the requests refer to them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tetrad.frontend.engine.instructions import Instructions
from tetrad.frontend.engine.wire import engine_request, sampling_message, set_time_left
from tetrad.frontend.request.sequence import Sequence
from tetrad.services.columns import U32_BYTES, pack_u32
from tetrad.services.message_size import BATCH_BYTES
from tetrad.v1 import engine_core_pb2, types_pb2

_OVERHEAD_BYTES = 64
"""Bounds what a message adds to an entry: tags, lengths, the seed, the index, the time left, the mark of resumption."""


@dataclass(frozen=True, slots=True, eq=False)
class SharedParams:
    """The sampling parameters of one client request: one message for all of its sequences, never changed."""

    message: types_pb2.SamplingParams
    num_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Unfinished:
    """A sequence with what an engine core gets of it.

    Attributes:
        sequence: has its tokens.
        request: the message without its prompt and its sampling parameters.
        prompt_token_ids: u32 column; like `params`, one object for all sequences of the client's request.
        params: the sampling parameters.
        num_request_bytes: encoded size of `request` before anything was generated.
    """

    sequence: Sequence
    request: engine_core_pb2.EngineCoreRequest
    prompt_token_ids: bytes
    params: SharedParams
    num_request_bytes: int

    @property
    def num_own_bytes(self) -> int:
        """Most bytes that it takes in a message besides the parameters, with the tokens that exist."""
        num_column_bytes = len(self.prompt_token_ids) + U32_BYTES * len(self.sequence.output_token_ids)
        return self.num_request_bytes + num_column_bytes + _OVERHEAD_BYTES

    @property
    def num_bytes(self) -> int:
        """Most bytes that a message has which holds it alone."""
        return self.num_own_bytes + self.params.num_bytes + 2 * _OVERHEAD_BYTES

    @property
    def most_bytes(self) -> int:
        """The same when it is resumed just before its last token."""
        return self.num_bytes + U32_BYTES * (self.sequence.max_tokens - len(self.sequence.output_token_ids))


def unfinished_of(sequences: Iterable[Sequence], told: Instructions) -> list[Unfinished]:
    """Return the sequences of one client request with their messages."""
    made: list[Unfinished] = []
    params: SharedParams | None = None
    prompt = b""
    for sequence in sequences:
        if params is None:
            message = sampling_message(sequence, told)
            params, prompt = SharedParams(message, message.ByteSize()), pack_u32(sequence.prompt_token_ids)
        request = engine_request(sequence, told)
        made.append(Unfinished(sequence, request, prompt, params, request.ByteSize()))
    return made


class AddMessage:
    """One message in the making.

    Args:
        shares: whether the engine core reads parameters that several requests share.
        most_bytes: that the engine core reads.

    Attributes:
        requests: that it holds.
        num_bytes: bounds its encoded size.
    """

    def __init__(self, *, shares: bool, most_bytes: int) -> None:
        self.requests: list[Unfinished] = []
        self.num_bytes = _OVERHEAD_BYTES
        self._shares, self._most_bytes = shares, most_bytes
        self._is_large, self._room_bytes = False, min(BATCH_BYTES, most_bytes)
        self._indices: dict[SharedParams, int] = {}

    def try_add(self, each: Unfinished) -> bool:
        """Take a request, unless the message is full. The first one always finds room."""
        is_held = self._shares and each.params in self._indices
        num_bytes = each.num_own_bytes + (0 if is_held else each.params.num_bytes + _OVERHEAD_BYTES)
        if self.requests and (self.num_bytes + num_bytes > self._room_bytes or (self._is_large and not is_held)):
            return False
        if not self.requests and num_bytes > BATCH_BYTES:
            # Sequences that share such large parameters do not repeat them in a message each; others keep away from them.
            self._is_large, self._room_bytes = True, min(num_bytes + BATCH_BYTES, self._most_bytes)
        self._indices.setdefault(each.params, len(self._indices))
        self.requests.append(each)
        self.num_bytes += num_bytes
        return True

    def encode(self) -> engine_core_pb2.SessionRequest:
        """Return the message."""
        message = engine_core_pb2.SessionRequest()
        if self._shares:
            message.add.shared_sampling_params.extend(params.message for params in self._indices)
        for each in self.requests:
            request = message.add.requests.add()
            request.CopyFrom(each.request)
            request.prompt_token_ids = each.prompt_token_ids
            set_time_left(request, each.sequence)
            if self._shares:
                request.sampling_params_index = self._indices[each.params]
            else:
                request.sampling_params.CopyFrom(each.params.message)
                request.sampling_params.seed = request.seed
        return message


def add_messages(requests: Iterable[Unfinished], *, shares: bool, most_bytes: int) -> Iterator[AddMessage]:
    """Yield messages that hold the requests in their order.

    Args:
        requests: each fits a message.
        shares: whether the engine core reads parameters that several requests share.
        most_bytes: that the engine core reads.
    """
    message = AddMessage(shares=shares, most_bytes=most_bytes)
    for each in requests:
        if not message.try_add(each):
            yield message
            message = AddMessage(shares=shares, most_bytes=most_bytes)
            message.try_add(each)
    if message.requests:
        yield message
