"""Images: preprocesses the images of requests, and encodes the prompts that have them.

Called by the servicer, which runs `PromptImages.encode` in a thread. `ModelImages` serves models that read images, `NoImages`
refuses them for all others. Knows tokens and features; knows no protobuf.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tetrad.services.errors import InvalidRequest
from tetrad.tokenizer_svc.media.expansion import expand_ids, expand_text, repeat_marks, shorten
from tetrad.tokenizer_svc.media.items import ImageFeature, ImageItem, PlacedImage
from tetrad.tokenizer_svc.media.preprocessor import ImagePreprocessor
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
        placeholder: text of an image before it is expanded.
        mark: text of a token that an embedding replaces.
        mark_id: its id.
    """

    tokenizer: Tokenizer
    features: Sequence[ImageFeature]
    placeholder: str
    mark: str
    mark_id: int

    def encode(
        self, text: str, *, add_special_tokens: bool, truncation: Truncation | None, field: str
    ) -> tuple[list[int], list[PlacedImage]]:
        """Return the ids of a prompt with its placeholders expanded, and the places of its images.

        Raises:
            InvalidRequest: placeholders and images differ in number, or an image would be cut. `field` is the prompt's.
        """
        expanded = expand_text(text, self.placeholder, self.features, field=field)
        encoded, num_around = self.tokenizer.encode_whole(expanded, add_special_tokens=add_special_tokens)
        token_ids, placed = repeat_marks(encoded, self.mark_id, self.mark, self.features, field=field)
        return (token_ids, placed) if truncation is None else shorten(token_ids, placed, truncation, num_around)

    def encode_ids(
        self, token_ids: Sequence[int], *, truncation: Truncation | None, field: str
    ) -> tuple[list[int], list[PlacedImage]]:
        """Return the ids of a prompt of ids, as `encode` does for a text."""
        texts = [self.placeholder, *(feature.expansion.text for feature in self.features)]
        placeholder, *expansions = (self.tokenizer.encode(text, add_special_tokens=False) for text in texts)
        expanded = expand_ids(token_ids, placeholder, expansions, text=self.placeholder, field=field)
        repeated, placed = repeat_marks(expanded, self.mark_id, self.mark, self.features, field=field)
        return (repeated, placed) if truncation is None else shorten(repeated, placed, truncation, (0, 0))


class Images(Protocol):
    """What preprocesses the images of a model.

    Attributes:
        message_text: text of an image in a message for templates that read only texts; None: no such text.
        limits: limits of the media that are preprocessed.
    """

    message_text: str | None
    limits: Sequence[MediaLimits]

    def check_number(self, number: int) -> None:
        """Raise InvalidRequest if a prompt cannot have this many images; costs little, before the prompt is rendered."""

    async def preprocess(self, items: Sequence[ImageItem], kwargs: str) -> PromptImages:
        """Return the images of one prompt, in their order.

        Args:
            items: the images.
            kwargs: settings of the image processor, a JSON object; empty: none.

        Raises:
            InvalidRequest: an image is refused.
        """

    def reset_cache(self) -> None:
        """Forget the images that were seen."""

    async def close(self) -> None:
        """Stop all processes."""


class NoImages:
    """Refuses images.

    Args:
        model: the model's name.
        reason: why its images cannot be read; empty: it reads text only.
    """

    def __init__(self, model: str, reason: str = "") -> None:
        self.message_text: str | None = None
        self.limits: Sequence[MediaLimits] = ()
        self._text = reason or f"{model} is not a multimodal model"

    def check_number(self, number: int) -> None:
        """Raise InvalidRequest for any image."""
        if number:
            raise InvalidRequest(self._text, field="media")

    async def preprocess(self, *_: object) -> PromptImages:
        """Raise InvalidRequest."""
        raise InvalidRequest(self._text, field="media")

    def reset_cache(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


class ModelImages:
    """Preprocesses images for one model.

    Args:
        tokenizer: the model's tokenizer.
        preprocessor: makes features; owned by this object.
    """

    def __init__(self, tokenizer: Tokenizer, preprocessor: ImagePreprocessor) -> None:
        self._tokenizer, self._preprocessor = tokenizer, preprocessor
        self.message_text: str | None = preprocessor.message_text
        self.limits: Sequence[MediaLimits] = (MediaLimits("image", preprocessor.max_images, preprocessor.max_embeds),)

    def check_number(self, number: int) -> None:
        """Raise InvalidRequest for more images than a prompt may have."""
        most = self._preprocessor.max_images
        if number > most:
            text = f"At most {most} image(s) may be provided in one prompt. There are {number} (max_images_per_prompt)."
            raise InvalidRequest(text, field="media")

    async def preprocess(self, items: Sequence[ImageItem], kwargs: str) -> PromptImages:
        """Return the images of one prompt. Raises the errors of ImagePreprocessor."""
        maker = self._preprocessor
        features = await maker.preprocess(items, maker.kwargs(kwargs))
        return PromptImages(self._tokenizer, features, maker.placeholder, maker.mark, maker.mark_id)

    def reset_cache(self) -> None:
        """Forget the images that were seen."""
        self._preprocessor.reset_cache()

    async def close(self) -> None:
        """Stop the processes."""
        await self._preprocessor.close()
