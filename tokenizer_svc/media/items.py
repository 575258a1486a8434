"""Items: images of a prompt, as they come in and as they leave. Values without rules, shared by the files of this room."""

from dataclasses import dataclass

from tetrad.tokenizer_svc.media.images.families.family import Expansion, Grid
from tetrad.tokenizer_svc.media.images.families.model import ProcessedImage


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
        expansion: what replaces the placeholder.
        grid: frames, rows and columns of the embeddings; None: their positions count one by one.
    """

    identifier: str
    image: ProcessedImage
    expansion: Expansion
    grid: Grid | None

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensors and of the text."""
        return self.image.size_bytes + len(self.expansion.text)


@dataclass(frozen=True)
class PlacedImage:
    """An image in a prompt.

    Attributes:
        feature: the image.
        offset: index of the first token that takes one of its embeddings.
        length: number of tokens from this one to the last that takes one.
        is_embed: one byte for each of these tokens: whether it takes an embedding; empty: all do.
    """

    feature: ImageFeature
    offset: int
    length: int
    is_embed: bytes
