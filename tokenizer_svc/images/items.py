"""Items: images of a prompt, as they come in and as they leave. Values without rules, shared by the files of this room."""

from collections.abc import Mapping
from dataclasses import dataclass

from tetrad.tokenizer_svc.images.model import ProcessedImage


@dataclass(frozen=True)
class ImageItem:
    """An image of a request.

    Attributes:
        data: the file; empty: the image is expected under its uuid.
        uuid: the caller's name of the content; empty: none.
        media_type: as "image/png"; empty: unknown. It is only named in errors.
    """

    data: bytes
    uuid: str = ""
    media_type: str = ""


@dataclass(frozen=True)
class ImageFeature:
    """A preprocessed image, without its place in a prompt.

    Attributes:
        identifier: hexadecimal digest of the content and of all settings, or of the caller's uuid.
        image: the processor's output.
        token_ids: ids that replace the placeholder.
        start: index in `token_ids` of the first that takes an embedding.
        is_embed: one byte for each of the tokens from the first that takes an embedding to the last; empty: all take one.
        length: number of these tokens.
        num_embeds: number of embeddings.
        grid: frames, rows and columns of the embeddings; None: their positions count one by one.
    """

    identifier: str
    image: ProcessedImage
    token_ids: list[int]
    start: int
    length: int
    is_embed: bytes
    num_embeds: int
    grid: tuple[int, int, int] | None

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensors and of the ids."""
        tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]] = self.image.tensors
        return sum(len(data) for _, _, data in tensors.values()) + 8 * len(self.token_ids)


@dataclass(frozen=True)
class PlacedImage:
    """An image in a prompt; `offset` is the index of the first token that takes one of its embeddings."""

    feature: ImageFeature
    offset: int
