"""Media items: the images, audio and videos of a prompt, before and after they are fetched. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

IMAGE: Final = "image"
AUDIO: Final = "audio"
VIDEO: Final = "video"
MODALITIES: Final = (IMAGE, AUDIO, VIDEO)
"""Kinds of media, in the words of the tokenizer and the engine core."""


@dataclass(frozen=True, slots=True)
class ModalityFacts:
    """What a model takes of one kind of media.

    Attributes:
        modality: "image", "audio" or "video".
        max_items: maximum number of items in a prompt; 0: no limit of the model.
        max_embeds_per_item: maximum number of embeddings that one item becomes.
    """

    modality: str
    max_items: int = 0
    max_embeds_per_item: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSource:
    """An item of a request, and where it is. At most one of `url`, `base64`, `data` and `embeds` is set; none: `uuid` alone
    names it.

    Attributes:
        where: the field of the request, for errors.
        url: a data:, http:, https: or file: URL.
        base64: the file in base64.
        data: the file.
        uuid: the client's own name of the content; empty: its hash.
        media_type: as "image/png"; empty: unknown.
        modality: "image", "audio" or "video".
        embeds: the item's embeddings: a file of torch.save for each tensor's name, as bytes or in base64.
        is_embeds: whether the item is embeddings; also of one that `uuid` alone names.
    """

    where: str
    url: str = field(default="", repr=False)
    base64: str = field(default="", repr=False)
    data: bytes | None = field(default=None, repr=False)
    uuid: str = ""
    media_type: str = ""
    modality: str = IMAGE
    embeds: Mapping[str, str | bytes] = field(default_factory=dict, repr=False)
    is_embeds: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaItem:
    """An item as it was fetched.

    Attributes:
        data: the file; empty: the tokenizer has the item under `uuid`.
        uuid: the client's own name of the content; empty: its hash.
        media_type: as "image/png"; empty: unknown.
        modality: "image", "audio" or "video".
        where: the field of the request, for errors.
        is_embeds: whether the file has the item's embeddings.
    """

    data: bytes = field(repr=False)
    uuid: str = ""
    media_type: str = ""
    modality: str = IMAGE
    where: str = ""
    is_embeds: bool = False
