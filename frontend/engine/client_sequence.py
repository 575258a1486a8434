"""ActiveSequence: an unfinished sequence with its request, its engine core and its message to the engine core.

Made by the intake for each of the n outputs of a request. The engine client keeps it to send it again after a loss; the output
processor finds it by its handle. Event loop only.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from tetrad.frontend.engine.prepared_request import PreparedRequest
from tetrad.frontend.engine.wire import encode_request, encode_sampling, without_tensors
from tetrad.frontend.media.features import MediaFeature, total_bytes
from tetrad.frontend.request.kv_transfer import FIELD_OF_ENGINE_CORES
from tetrad.frontend.request.prompt_embeds import PromptEmbeds
from tetrad.frontend.request.request_state import RequestState
from tetrad.frontend.request.sequence import Sequence
from tetrad.services.errors import TetradError
from tetrad.services.rpc.columns import U32_BYTES, pack_u32
from tetrad.services.timers.time_slice import TimeSlice
from tetrad.v1 import engine_core_pb2, types_pb2

OVERHEAD_BYTES = 64
"""Upper bound of the further bytes of a message's entry: tags, lengths, seed, index, time left, mark of resumption."""


class Engine(Protocol):
    """The methods of an engine client that end sequences."""

    def forget(self, request_id: str) -> None:
        """Remove a finished sequence."""

    def abort(self, request_ids: Iterable[str]) -> None:
        """Send aborts of sequences to the engine core; the caller then calls `forget`."""


@dataclass(frozen=True, slots=True, eq=False)
class SharedParams:
    """The sampling parameters of one client request: one message for all of its sequences; never changed.

    `message` is None for a pooling request, whose own message has its parameters.
    """

    message: types_pb2.SamplingParams | None
    num_bytes: int


NO_PARAMS = SharedParams(None, 0)
"""The shared parameters of every pooling request: none."""


@dataclass(slots=True, eq=False)
class ActiveSequence:
    """An unfinished sequence.

    Attributes:
        sequence: the tokens and the text.
        request: the client's request that the sequence belongs to.
        engine: client of the engine core that runs the sequence.
        message: the EngineCoreRequest without prompt and sampling parameters.
        prompt_token_ids: the prompt as a u32 column; like `params`, one object for all sequences of the client's request.
        params: the sampling parameters.
        num_message_bytes: encoded size of `message` before any token was generated.
        embeds: the embeddings of the prompt, also one object for all sequences; None: the prompt has ids only.
        features: the preprocessed images of the prompt, also the same objects for all sequences.
        bare_features: the same without their tensors, for an engine core that has these (sent_media.py).
        was_sent: whether an engine core may have accepted the sequence; if so, queue limits do not apply when it is sent again.
        may_wait: whether it may wait for a lost engine core or continue on another one; else it fails instead.
        may_drop_transfer: whether it computes its prompt itself if an engine core refuses its KV transfer.
    """

    sequence: Sequence
    request: RequestState
    engine: Engine
    message: engine_core_pb2.EngineCoreRequest
    prompt_token_ids: bytes
    params: SharedParams
    num_message_bytes: int
    embeds: PromptEmbeds | None = None
    features: tuple[MediaFeature, ...] = ()
    bare_features: tuple[MediaFeature, ...] = ()
    was_sent: bool = False
    may_wait: bool = True
    may_drop_transfer: bool = False

    @property
    def known_prompt(self) -> bytes:
        """The prompt for routing to an engine core that has it cached: a u32 column; empty for a prompt with embeddings."""
        return self.prompt_token_ids if self.embeds is None else b""

    def num_own_bytes(self, features: tuple[MediaFeature, ...]) -> int:
        """Return the upper bound of the sequence's bytes in an AddRequests message, with the tokens so far, without parameters.

        Args:
            features: the features of the prompt as they are sent: with all tensors, or with some of them.
        """
        num_column_bytes = len(self.prompt_token_ids) + U32_BYTES * len(self.sequence.output_token_ids)
        num_column_bytes += self.embeds.num_bytes if self.embeds is not None else 0
        num_column_bytes += total_bytes(features) + OVERHEAD_BYTES * len(features)
        return self.num_message_bytes + num_column_bytes + OVERHEAD_BYTES

    def try_without_transfer(self, error: TetradError) -> bool:
        """Remove the KV transfer if `error` refuses it and the sequence can do without it; return whether it was removed."""
        if not self.may_drop_transfer or error.field != FIELD_OF_ENGINE_CORES or not self.message.HasField("kv_transfer"):
            return False
        self.message.ClearField("kv_transfer")
        return True

    @property
    def num_bytes(self) -> int:
        """The upper bound of the size of an AddRequests message with this sequence only, with all tensors."""
        return self.num_own_bytes(self.features) + self.params.num_bytes + 2 * OVERHEAD_BYTES

    @property
    def most_bytes(self) -> int:
        """The value of `num_bytes` if the sequence is resumed just before its last token."""
        return self.num_bytes + U32_BYTES * (self.sequence.max_tokens - len(self.sequence.output_token_ids))


async def active_sequences(prepared: PreparedRequest, engine: Engine) -> list[ActiveSequence]:
    """Return the sequences of one client request with their messages to `engine`."""
    time_slice = TimeSlice()
    made: list[ActiveSequence] = []
    params: SharedParams | None = None
    prompt = b""
    features, embeds = prepared.state.features, prepared.embeds
    bare = tuple(map(without_tensors, features))
    for sequence in prepared.state.sequences:
        if params is None:
            params, prompt = _shared_params(sequence, prepared), pack_u32(sequence.prompt_token_ids)
        message = encode_request(sequence, prepared)
        size = message.ByteSize()
        made.append(ActiveSequence(sequence, prepared.state, engine, message, prompt, params, size, embeds, features, bare))
        await time_slice.check()
    return made


def pooling_sequence(sequence: Sequence, prepared: PreparedRequest, engine: Engine, prompt_token_ids: bytes) -> ActiveSequence:
    """Return an input of a pooling request with its message to `engine`; `prompt_token_ids` is a u32 column."""
    message = encode_request(sequence, prepared)
    return ActiveSequence(sequence, prepared.state, engine, message, prompt_token_ids, NO_PARAMS, message.ByteSize())


def _shared_params(sequence: Sequence, prepared: PreparedRequest) -> SharedParams:
    message = encode_sampling(sequence, prepared)
    return SharedParams(message, message.ByteSize())
