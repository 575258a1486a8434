"""Slot encoded: the item that each request attends to, of a model with an encoder and a decoder.

A SlotListener of the request table. No token is replaced: every token of a request attends to the encoder's output, which stays
in the encoder cache while the request runs. Knows no tower and no device.
"""

from dataclasses import replace
from typing import Any

from tetrad.services.errors import InvalidRequest, Unsupported
from tetrad.worker_svc.core.media import EncodedItems, ModelMedia
from tetrad.worker_svc.core.plan import GivenRows, NewRequest
from tetrad.worker_svc.core.step_inputs import StepInputs, StepRows
from tetrad.worker_svc.media.slot_media import NoMedia, SlotMedia, StepMedia


class SlotEncoded:
    """The StepMedia of a model with an encoder and a decoder.

    Args:
        media: the tower, and the encoder cache with its outputs.
    """

    def __init__(self, media: ModelMedia) -> None:
        self._cache: EncodedItems = media.cache
        [self._modality] = media.tower.modalities
        self._of_slot: dict[int, str] = {}

    def add(self, slot: int, request: NewRequest) -> None:
        """Store the identifier of a request's item. Requests that warm up have none, and attend to nothing."""
        for span in request.media:
            self._of_slot[slot] = span.identifier

    def remove(self, slot: int) -> None:
        """Delete the slot's item."""
        self._of_slot.pop(slot, None)

    def check(self, request: NewRequest) -> None:
        """Raise Unsupported for another modality than the tower's, InvalidRequest for several items, or one with tokens."""
        if len(request.media) > 1:
            raise InvalidRequest(f"A prompt of this model has one {self._modality.modality}, not {len(request.media)}.")
        for span in request.media:
            if span.modality != self._modality.modality:
                text = (
                    f"The model on this worker takes media of modality {self._modality.modality!r}, not {span.modality[:80]!r}."
                )
                raise Unsupported(text, field="mm_features")
            if span.offset or span.length or span.num_embeds != self._modality.max_embeds_per_item:
                raise InvalidRequest(
                    f"The media item has {span.length} tokens at {span.offset} and {span.num_embeds} embeddings; those of this "
                    f"model have no tokens and {self._modality.max_embeds_per_item} embeddings."
                )

    def gather(self, rows: StepRows, given: GivenRows | None) -> GivenRows | None:  # noqa: ARG002 - of StepMedia
        """Return `given`: items replace no tokens."""
        return given

    def placed(self, inputs: StepInputs) -> StepInputs:
        """Return the inputs with the encoder's output of each row. Raises InvalidRequest if one is not in the encoder cache."""
        if not self._of_slot:
            return inputs
        return replace(inputs, encoded=[self._encoded(slot) for slot in inputs.slots.tolist()])

    def _encoded(self, slot: int) -> Any:
        identifier = self._of_slot.get(slot)
        if identifier is None:
            return None
        encoded = self._cache.get(identifier)
        if encoded is None:
            raise InvalidRequest(f"The plan has tokens that attend to media item {identifier[:80]}, which is not encoded.")
        return encoded.rows


def step_media(media: ModelMedia | None) -> StepMedia:
    """Return the media of a runner's requests; `media` is None if the model takes only text."""
    if media is None:
        return NoMedia()
    return SlotEncoded(media) if media.tower.is_attended else SlotMedia(media)
