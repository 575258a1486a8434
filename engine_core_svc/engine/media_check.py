"""Media check: checks the media of a submission against its prompt and the limits of the model and the encoder cache.

Called by admission. The places of media are part of the prompt that the tokenizer made; a wrong place would give a request the
embeddings of another position, or let it wait for ever.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from tetrad.engine_core_svc.core.media import EncoderInput, MediaSpan, Modality
from tetrad.services.errors import InvalidRequest, TetradError
from tetrad.services.message_size import too_large

_FIELD = "mm_features"
_NUM_AXES = 3
_HEAD_BYTES = 64
"""Upper limit of the bytes that a message adds to its only item."""


class MediaCheck:
    """The limits of media.

    Args:
        model: name of the model, for errors.
        modalities: media that the model takes.
        cache_size: room of the encoder cache, in embeddings.
        max_message_bytes: maximum bytes of a message to the worker.
        max_step_tokens: maximum number of tokens that one step computes.
    """

    def __init__(
        self, model: str, modalities: Sequence[Modality], *, cache_size: int, max_message_bytes: int, max_step_tokens: int
    ) -> None:
        self._model, self._cache_size, self._max_message_bytes = model, cache_size, max_message_bytes
        self._max_step_tokens = max_step_tokens
        self._modalities = {modality.name: modality for modality in modalities}

    def check(self, spans: Sequence[MediaSpan], inputs: Mapping[str, EncoderInput], num_prompt_tokens: int) -> None:
        """Raise InvalidRequest, which names value and limit, if the media of a request cannot be processed."""
        if not spans:
            return
        if not self._modalities:
            raise _refusal(f"{self._model} is not a multimodal model.")
        end = 0
        for index, span in enumerate(spans):
            self._check_place(index, span, end, num_prompt_tokens)
            self._check_size(index, span)
            end = span.end
        for name, count in Counter(span.modality for span in spans).items():
            most = self._modalities[name].max_items
            if most and count > most:
                raise _refusal(f"At most {most} {name}(s) may be provided in one prompt; this one has {count}.")
        for item in inputs.values():
            if item.size_bytes + _HEAD_BYTES > self._max_message_bytes:
                raise too_large("A media item", item.size_bytes + _HEAD_BYTES, self._max_message_bytes, field=_FIELD)

    def _check_place(self, index: int, span: MediaSpan, start: int, num_prompt_tokens: int) -> None:
        named = self._check_name(index, span)
        if not span.length or span.end > num_prompt_tokens:
            place = f"{span.length} tokens at position {span.offset}"
            raise _refusal(f"{named} has {place}; the prompt has {num_prompt_tokens} tokens, and an item at least 1.")
        if span.offset < start:
            raise _refusal(f"{named} begins at position {span.offset}, before the end {start} of the item before it.")
        if span.is_embed and (len(span.is_embed) != span.length or set(span.is_embed) - {0, 1}):
            raise _refusal(f"{named} has is_embed of {len(span.is_embed)} bytes; it needs {span.length}, each 0 or 1.")

    def _check_name(self, index: int, span: MediaSpan) -> str:
        """Check modality and identifier of an item; return how errors name it."""
        named = f"Media item {index}"
        if span.modality not in self._modalities:
            taken = ", ".join(self._modalities)
            raise _refusal(f"{named} is of modality {span.modality!r}; {self._model} takes {taken}.")
        if not span.identifier:
            raise _refusal(f"{named} has no identifier.")
        return named

    def _check_size(self, index: int, span: MediaSpan) -> None:
        named = f"Media item {index}"
        num_places = span.is_embed.count(1) if span.is_embed else span.length
        if not span.num_embeds or span.num_embeds != num_places:
            raise _refusal(f"{named} has num_embeds {span.num_embeds}, but {num_places} of its tokens take an embedding.")
        if span.grid and (len(span.grid) != _NUM_AXES or math.prod(span.grid) != span.num_embeds):
            text = f"{named} has grid {list(span.grid)}; it needs time, height and width of its {span.num_embeds} embeddings."
            raise _refusal(text)
        most = self._modalities[span.modality].max_embeds
        if span.num_embeds > most:
            text = f"{named} has {span.num_embeds} embeddings; the maximum of one {span.modality} is {most}. Reduce its size."
            raise _refusal(text)
        if self._modalities[span.modality].is_whole and span.length > self._max_step_tokens:
            text = f"{named} has {span.length} tokens, which one step must compute; its maximum is {self._max_step_tokens}."
            raise _refusal(f"{text} Raise --max-num-batched-tokens.")
        if span.num_embeds > self._cache_size:
            text = f"{named} has {span.num_embeds} embeddings; the encoder cache has room for {self._cache_size}."
            raise _refusal(f"{text} Reduce its size.")


class AttendedMediaCheck(MediaCheck):
    """The limits of a model with an encoder and a decoder: a request has one item, without tokens and of one size."""

    def check(self, spans: Sequence[MediaSpan], inputs: Mapping[str, EncoderInput], num_prompt_tokens: int) -> None:
        """See MediaCheck."""
        if len(spans) != 1:
            text = f"{self._model} has an encoder and a decoder: a prompt needs exactly 1 {' or '.join(self._modalities)}"
            raise _refusal(f"{text}, and this one has {len(spans)}.")
        super().check(spans, inputs, num_prompt_tokens)

    def _check_place(self, index: int, span: MediaSpan, start: int, num_prompt_tokens: int) -> None:  # noqa: ARG002 - as above
        named = self._check_name(index, span)
        if span.offset or span.length or span.is_embed or span.grid:
            text = f"{named} has {span.length} tokens at position {span.offset}; that of a model with an encoder and a decoder"
            raise _refusal(f"{text} has none, and no is_embed and grid.")

    def _check_size(self, index: int, span: MediaSpan) -> None:
        size = self._modalities[span.modality].max_embeds
        if span.num_embeds != size:
            text = f"Media item {index} has {span.num_embeds} embeddings; each {span.modality} of this model has {size}."
            raise _refusal(text)


NO_MEDIA = MediaCheck("The model", (), cache_size=0, max_message_bytes=0, max_step_tokens=0)
"""The check of a model that takes no media."""


def _refusal(text: str) -> TetradError:
    return InvalidRequest(text, field=_FIELD)
