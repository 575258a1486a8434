"""Images: preprocesses the images of requests, and encodes the prompts that have them.

Called by the servicer, which runs `PromptImages.encode` in a thread. `ModelImages` serves models that read images, `NoImages`
refuses them for all others. Knows tokens and features; knows no protobuf.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tetrad.services.errors import InvalidRequest
from tetrad.tokenizer_svc.images.expansion import check_placeholders, expand, shorten
from tetrad.tokenizer_svc.images.items import ImageFeature, ImageItem, PlacedImage
from tetrad.tokenizer_svc.images.preprocessor import ImagePreprocessor
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer, Truncation


@dataclass(frozen=True)
class MediaLimits:
    """Limits of one kind of media: items of a prompt, and embeddings of the largest item."""

    name: str
    max_items: int
    max_embeds: int


@dataclass(frozen=True)
class PromptImages:
    """The images of one prompt.

    Attributes:
        tokenizer: the model's tokenizer.
        features: the images in the order of their placeholders.
        image_id: id of the placeholder.
        image_text: text of the placeholder, for errors.
    """

    tokenizer: Tokenizer
    features: Sequence[ImageFeature]
    image_id: int
    image_text: str

    def encode(
        self, text: str, *, add_special_tokens: bool, truncation: Truncation | None, field: str
    ) -> tuple[list[int], list[PlacedImage]]:
        """Return the ids of a prompt with its placeholders expanded, and the places of its images.

        Raises:
            InvalidRequest: placeholders and images differ in number, or an image would be cut. `field` is the prompt's.
        """
        token_ids, num_around = self.tokenizer.encode_whole(text, add_special_tokens=add_special_tokens)
        check_placeholders(token_ids, self.image_id, len(self.features), text=self.image_text, field=field)
        expanded, placed = expand(token_ids, self.image_id, self.features)
        return (expanded, placed) if truncation is None else shorten(expanded, placed, truncation, num_around)


class Images(Protocol):
    """What preprocesses the images of a model.

    Attributes:
        placeholder: text of an image in a message for templates that read only texts; None: no such text.
        limits: limits of the media that are preprocessed.
    """

    placeholder: str | None
    limits: Sequence[MediaLimits]

    async def preprocess(self, items: Sequence[ImageItem], kwargs: str) -> PromptImages:
        """Return the images of one prompt, in their order.

        Args:
            items: the images.
            kwargs: settings of the image processor, a JSON object; empty: none.

        Raises:
            InvalidRequest: images are not read, or one of these is refused.
        """

    async def close(self) -> None:
        """Stop all processes."""


class NoImages:
    """Refuses images.

    Args:
        model: the model's name.
        reason: why its images cannot be read; empty: it reads text only.
    """

    def __init__(self, model: str, reason: str = "") -> None:
        self.placeholder: str | None = None
        self.limits: Sequence[MediaLimits] = ()
        self._text = reason or f"{model} is not a multimodal model"

    async def preprocess(self, *_: object) -> PromptImages:
        """Raise InvalidRequest."""
        raise InvalidRequest(self._text, field="media")

    async def close(self) -> None:
        """Do nothing."""


class ModelImages:
    """Preprocesses images for one model.

    Args:
        tokenizer: the model's tokenizer.
        preprocessor: makes features; owned by this object.
        placeholder: see Images.
    """

    def __init__(self, tokenizer: Tokenizer, preprocessor: ImagePreprocessor, placeholder: str) -> None:
        self._tokenizer, self._preprocessor = tokenizer, preprocessor
        self.placeholder: str | None = placeholder
        self.limits: Sequence[MediaLimits] = (MediaLimits("image", preprocessor.max_images, preprocessor.max_embeds),)

    async def preprocess(self, items: Sequence[ImageItem], kwargs: str) -> PromptImages:
        """Return the images of one prompt. Raises the errors of ImagePreprocessor."""
        maker = self._preprocessor
        features = await maker.preprocess(items, maker.kwargs(kwargs))
        return PromptImages(self._tokenizer, features, maker.image_id, maker.image_text)

    async def close(self) -> None:
        """Stop the processes."""
        await self._preprocessor.close()
