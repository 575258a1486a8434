"""Media interface: a tower turns the media items of prompts into embeddings.

A LoadedModel that takes media has a tower. The worker encodes one item at a time, so that its embeddings do not depend on
others, and keeps the embeddings in an encoder cache until the engine core frees them. Knows nothing of gRPC or of a device.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from tetrad.services.errors import Unsupported
from tetrad.worker_svc.core.plan import EncoderItem

IMAGE, VIDEO, AUDIO = "image", "video", "audio"
"""Names of modalities."""


@dataclass(frozen=True, slots=True)
class Modality:
    """A kind of media that a model takes.

    Attributes:
        modality: the kind.
        max_embeds_per_item: the largest number of embeddings that one item becomes by the model's files.
        is_whole: whether the tokens of an item also attend to its later tokens; then no step ends inside an item.
    """

    modality: str
    max_embeds_per_item: int
    is_whole: bool = False


class EncodedItem(NamedTuple):
    """The output of a tower: arrays in host memory, in float32, or tensors on a device, in the type of activations.

    Attributes:
        rows: [N, hidden], the embeddings of the item's N placeholders in their order. Of a tower whose output is attended to:
            [layers, 2, heads, N, head_dim], the keys and values of N positions for the cross-attention of each layer.
        deep: [L, N, hidden], added to the hidden states behind the first L layers; None: the model has no DeepStack.
    """

    rows: Any
    deep: Any = None


class Tower(Protocol):
    """The part of a model that reads media: the vision model with its projector.

    Attributes:
        modalities: the kinds of media.
        has_own_thread: whether `encode` runs on the encoder thread, beside steps; False: on the compute thread, between steps.
        uses_mrope: whether the model's positions have three axes: time, height and width.
        num_deep_layers: number of layers behind which the model adds an item's further values (L of EncodedItem).
        num_parameters, size_bytes: number of weights, and their bytes.
        embed_bytes: bytes of an embedding in the encoder cache, deep values included.
        is_attended: whether the model's layers attend to the output (cross-attention); otherwise, embeddings replace tokens'.
    """

    modalities: tuple[Modality, ...]
    has_own_thread: bool
    uses_mrope: bool
    num_deep_layers: int
    num_parameters: int
    size_bytes: int
    embed_bytes: int
    is_attended: bool

    def encode(self, item: EncoderItem) -> EncodedItem:
        """Return an item's embeddings.

        Raises a TetradError if this item cannot be encoded; any other error means that the device can no longer be used.
        """

    def activation_bytes(self, num_embeds: int) -> int:
        """Return the bytes that `encode` allocates besides its result for an item of this many embeddings."""


class Alignment(NamedTuple):
    """How a model's cross-attention says when tokens are said: see media/time_warping.py.

    Attributes:
        heads: (layer, head) of those that follow the audio.
        filter_width: odd number of neighbouring positions of whose weights the median is taken.
    """

    heads: tuple[tuple[int, int], ...]
    filter_width: int


@runtime_checkable
class AlignsTokens(Protocol):
    """A Tower of audio whose model says when tokens are said."""

    @property
    def alignment(self) -> Alignment:
        """The heads that follow the audio."""

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """See Tower."""


@runtime_checkable
class TakesMedia(Protocol):
    """A LoadedModel that may have a tower."""

    @property
    def media(self) -> "ModelMedia | None":
        """The tower and its encoder cache; None: the model takes only text."""


class EncodedItems(Protocol):
    """The encoder cache: the embeddings of media items by identifier. All methods are safe on any thread."""

    def restart(self, stream_id: int) -> None:
        """Delete all items; from now on only items of this stream are stored."""

    def put(self, stream_id: int, identifier: str, encoded: EncodedItem, after_step: int) -> None:
        """Store an item; does nothing if another stream has begun.

        Args:
            stream_id: stream of the request for the item.
            identifier: key of the item.
            encoded: its embeddings.
            after_step: id of the last plan before that request in the stream; -1: there was none.
        """

    def free(self, identifiers: tuple[str, ...], step_id: int) -> None:
        """Delete the items that this step frees, except those that were requested again after the step's plan."""

    def get(self, identifier: str) -> EncodedItem | None:
        """Return an item; None if it is not in the cache."""


class ModelMedia(NamedTuple):
    """The tower of a loaded model, and the cache with the embeddings that it made."""

    tower: Tower
    cache: EncodedItems

    def encode(self, stream_id: int, item: EncoderItem, after_step: int) -> None:
        """Encode an item of a stream, and store its embeddings.

        Raises Unsupported if the tower takes other media; otherwise as Tower.encode.
        """
        taken = [each.modality for each in self.tower.modalities]
        if item.modality not in taken:
            raise Unsupported(f"The model takes media of modality {quoted(taken)}, not {item.modality[:80]!r}.")
        self.cache.put(stream_id, item.identifier, self.tower.encode(item), after_step)


def quoted(modalities: Iterable[str]) -> str:
    """Return names of modalities for an error."""
    return " or ".join(map(repr, modalities))


def media_of(model: object) -> ModelMedia | None:
    """Return the tower and the cache of a loaded model; None: it takes only text."""
    return model.media if isinstance(model, TakesMedia) else None
