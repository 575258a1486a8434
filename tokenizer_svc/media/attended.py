"""Attended media: the prompt of a model with an encoder and a decoder, whose tokens all attend to its item.

The item has no place in the prompt, so nothing is expanded. A decoder's prompt begins with a start token, and has no other
special tokens than those that the caller writes: an end of text would end the answer (as in vLLM).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tetrad.tokenizer_svc.media.expansion import shorten
from tetrad.tokenizer_svc.media.items import MediaFeature, PlacedMedia
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer, Truncation


@dataclass(frozen=True)
class AttendedMedia:
    """The media of one prompt, as PromptMedia.

    Attributes:
        tokenizer: the model's tokenizer.
        features: the items.
        start_id: id of the start token.
    """

    tokenizer: Tokenizer
    features: Sequence[MediaFeature]
    start_id: int

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool,  # noqa: ARG002 - as in PromptMedia
        truncation: Truncation | None,
        field: str,
    ) -> tuple[list[int], list[PlacedMedia]]:
        """Return the ids of a prompt, with the start token, and its items."""
        token_ids, _ = self.tokenizer.encode_whole(text, add_special_tokens=False)
        return self.encode_ids(token_ids, truncation=truncation, field=field)

    def encode_ids(
        self,
        token_ids: Sequence[int],
        *,
        truncation: Truncation | None,
        field: str,  # noqa: ARG002 - as in PromptMedia
    ) -> tuple[list[int], list[PlacedMedia]]:
        """Return the ids of a prompt of ids, as `encode` does for a text."""
        # Whisper's prompts may have earlier text before the start token.
        started = list(token_ids) if self.start_id in token_ids else [self.start_id, *token_ids]
        if truncation is not None:
            started, _ = shorten(started, (), truncation, (1, 0))
        return started, [PlacedMedia(feature, 0, 0, b"") for feature in self.features]
