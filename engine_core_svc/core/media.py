"""Media: the images of prompts, as the engine core knows them: their places among the tokens, and their inputs for an encoder.

The engine core passes the inputs on to the worker, whose encoder turns an item into embeddings. Knows no pixels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tetrad.services.errors import TetradError


@dataclass(frozen=True, slots=True)
class Modality:
    """The limits of one kind of media.

    Attributes:
        name: "image", "audio" or "video".
        max_items: maximum number of items in a prompt.
        max_embeds: maximum number of embeddings of an item.
        is_whole: whether tokens of an item attend to all its tokens, so that no step may end inside an item.
    """

    name: str
    max_items: int
    max_embeds: int
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """The place of one media item among the tokens of a prompt. The embeddings of its item replace those of the tokens.

    An item of a model with an encoder and a decoder has no tokens, offset and length 0: all tokens attend to its embeddings.

    Attributes:
        identifier: key of the item in the encoder cache.
        modality: kind of the item.
        content_hash: hash of the item's content.
        offset: position of the span's first token, which takes an embedding.
        length: number of tokens of the span.
        num_embeds: number of the item's embeddings.
        is_embed: one byte per token of the span: 1 if it takes an embedding, 0 if not; empty: all tokens take one.
        grid: time, height and width of the embeddings, for models with positions on three axes; empty: plain positions.
        time_step: positions on the axis of time between two neighbouring times of `grid`; 0: one.
    """

    identifier: str
    modality: str
    content_hash: str
    offset: int
    length: int
    num_embeds: int
    is_embed: bytes = b""
    grid: tuple[int, ...] = ()
    time_step: float = 0.0

    @property
    def end(self) -> int:
        """The position after the span's last token."""
        return self.offset + self.length

    @property
    def size_bytes(self) -> int:
        """The bytes that the span adds to a message, without the names and numbers of a few bytes each."""
        return len(self.is_embed) + len(self.identifier.encode()) + len(self.content_hash.encode())


class EncoderInput:
    """An item as the encoder reads it, encoded for the worker. Requests with the same item have the same object.

    Attributes:
        size_bytes: bytes that it adds to a message.
    """

    __slots__ = ("size_bytes",)

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes


NO_INPUTS: Mapping[str, EncoderInput] = {}
"""The inputs of a request without media."""


@dataclass(frozen=True, slots=True)
class EncoderEvents:
    """Items whose encoding has ended.

    Attributes:
        encoded: identifiers of items whose embeddings are in the encoder cache.
        failures: identifier -> error of an item that could not be encoded.
    """

    encoded: Sequence[str] = ()
    failures: Mapping[str, TetradError] = field(default_factory=dict)
