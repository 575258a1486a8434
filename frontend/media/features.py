"""Features: the preprocessed media of a prompt, with their places among its tokens.

The tokenizer makes them and the engine core reads them; the frontend passes their tensors on without a look.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tetrad.services.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class MediaFeature:
    """One preprocessed item.

    Attributes:
        modality: "image", "audio" or "video".
        identifier: equal for items of equal content and settings.
        offset: index of the first placeholder in the prompt.
        length: number of placeholders, with marks between them; 0: all tokens attend to the item, which has no place.
        num_bytes: size of `message`.
        message: the tokenizer's message about the item; engine/wire.py writes it, with `offset`, into requests.
    """

    modality: str
    identifier: str
    offset: int
    length: int
    num_bytes: int
    message: object = field(repr=False, compare=False)

    @property
    def end(self) -> int:
        """Index of the first token behind the item."""
        return self.offset + self.length


def total_bytes(features: Iterable[MediaFeature]) -> int:
    """Return the size in bytes of the features' messages together."""
    return sum(feature.num_bytes for feature in features)


def kept_features(
    features: Sequence[MediaFeature], num_tokens: int, most: int | None, keep_end: bool
) -> tuple[MediaFeature, ...]:
    """Return the features of a prompt after its truncation.

    Args:
        features: the features of the whole prompt.
        num_tokens: number of tokens of the whole prompt.
        most: maximum number of tokens to keep; None: all.
        keep_end: whether the last tokens are kept, else the first.

    Raises:
        InvalidRequest: an item would be cut or dropped, as the model would then read about an image that is not there.
    """
    if most is None or num_tokens <= most:
        return tuple(features)
    start = num_tokens - most if keep_end else 0
    for feature in features:
        if feature.length and (feature.offset < start or feature.end > start + most):
            text = (
                f"truncate_prompt_tokens={most} would split or drop a(n) {feature.modality} item of the prompt's {num_tokens}"
            )
            raise InvalidRequest(f"{text} tokens.", field="truncate_prompt_tokens")
    return tuple(dataclasses.replace(each, offset=each.offset - start) if each.length else each for each in features)
