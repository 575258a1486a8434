"""Derender stream objects: the answers for one chunk of a stream, and the state for the next chunk, as msgspec structs."""

from typing import Annotated

import msgspec
from msgspec import Meta

from tetrad.frontend.api.http.chat.objects import ChatChunk
from tetrad.frontend.api.http.schemas.objects import Completion

_STATE = "Opaque: goes with the next chunk as it is."


class StateChoice(msgspec.Struct):
    """The tokens so far of one output."""

    index: Annotated[int, Meta(description="Which of the n outputs.")]
    output_token_ids: Annotated[list[int], Meta(description="Its tokens so far.")]
    output_chunk_lens: Annotated[list[int], Meta(description="Number of tokens of each chunk so far.")]
    finish_reason: Annotated[str | None, Meta(description="Why it ended, if it has.")] = None
    stop_reason: Annotated[int | str | None, Meta(description="The stop string or token id that ended it.")] = None


class StreamState(msgspec.Struct):
    """What a stream has had so far."""

    request_id: Annotated[str, Meta(description="The id of the stream.")]
    created: Annotated[int, Meta(description="When its first chunk was derendered.")]
    context_token_ids: Annotated[list[int], Meta(description="The end of the prompt.")]
    choices: Annotated[list[StateChoice], Meta(description="The outputs.")]


class DerenderedChatChunk(msgspec.Struct):
    """A chunk of /v1/chat/completions, and the state for the next one."""

    chunk: Annotated[ChatChunk, Meta(description="What is new.")]
    stream_state: Annotated[StreamState, Meta(description=_STATE)]


class DerenderedCompletionChunk(msgspec.Struct):
    """A chunk of /v1/completions, and the state for the next one."""

    chunk: Annotated[Completion, Meta(description="What is new.")]
    stream_state: Annotated[StreamState, Meta(description=_STATE)]
