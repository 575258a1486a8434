"""Items: media of a prompt, as they come in and as they leave. Values without rules, shared by the files of this room."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Grid = tuple[int, int, int]


class MediaError(Exception):
    """An item cannot be read or processed; the text is for the client. Raised in the processes of media."""


@dataclass(frozen=True)
class MediaInput:
    """An item of a request.

    Attributes:
        modality: "image", "audio" or "video".
        data: the file; empty: the item is expected under its uuid.
        uuid: the caller's name of the content; empty: none.
        media_type: as "image/png"; empty: unknown. It is only named in errors.
        is_embeds: whether the file has the item's embeddings.
    """

    modality: str
    data: bytes
    uuid: str = ""
    media_type: str = ""
    is_embeds: bool = False


@dataclass(frozen=True)
class ProcessedItem:
    """The processor's output for one item.

    Attributes:
        tensors: (dtype's name, shape, elements in row-major order) by transformers' names, without a dimension of items.
    """

    tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(len(data) for _, _, data in self.tensors.values())

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape."""
        return self.tensors[name][1]

    def integers(self, name: str) -> Sequence[int]:
        """Return the elements of a tensor of int64."""
        return memoryview(self.tensors[name][2]).cast("q").tolist()


@dataclass(frozen=True)
class Expansion:
    """What a prompt has in place of an item's placeholder.

    Attributes:
        text: a text with `num_marks` marks of the item's modality.
        num_marks: number of marks.
        repeat: number of tokens that each mark stands for; each of them takes an embedding.
    """

    text: str
    num_marks: int
    repeat: int

    @property
    def num_embeds(self) -> int:
        """Number of embeddings."""
        return self.num_marks * self.repeat


@dataclass(frozen=True)
class Marks:
    """How a model's prompts write the items of one modality.

    Attributes:
        placeholder: text of an item before it is expanded.
        mark: text of a token that an embedding replaces.
        mark_id: its id.
    """

    placeholder: str
    mark: str
    mark_id: int


NO_MARKS = Marks("", "", -1)
"""The marks of items that have no place in the prompt."""


@dataclass(frozen=True)
class MediaFeature:
    """A preprocessed item, without its place in a prompt.

    Attributes:
        modality: "image", "audio" or "video".
        identifier: hexadecimal digest of the content and of all settings, or of the caller's uuid.
        item: the processor's output.
        expansion: what replaces the placeholder.
        grid: frames, rows and columns of the embeddings; None: their positions count one by one.
        time_step: positions on the axis of time between two times of the grid; 0: one.
    """

    modality: str
    identifier: str
    item: ProcessedItem
    expansion: Expansion
    grid: Grid | None
    time_step: float = 0.0

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensors and of the text."""
        return self.item.size_bytes + len(self.expansion.text)


@dataclass(frozen=True)
class PlacedMedia:
    """An item in a prompt.

    Attributes:
        feature: the item.
        offset: index of the first token that takes one of its embeddings; 0 for an item to which all tokens attend.
        length: number of tokens from this one to the last that takes one; 0 for an item to which all tokens attend.
        is_embed: one byte for each of these tokens: whether it takes an embedding; empty: all do.
    """

    feature: MediaFeature
    offset: int
    length: int
    is_embed: bytes
