"""Slot media: the images of each request by slot, and the image rows of a step.

A SlotListener of the request table. It gathers the embeddings of a step's image tokens from the encoder cache, and the
positions of all tokens on three axes. Knows no tower and no device.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from tetrad.services.errors import InvalidRequest, Unsupported
from tetrad.worker_svc.core.media import EncodedItem, EncodedItems, ModelMedia, quoted
from tetrad.worker_svc.core.plan import GivenRows, Ints, MediaSpan, NewRequest
from tetrad.worker_svc.core.request_table import SlotListener, refuse_media
from tetrad.worker_svc.core.step_inputs import StepInputs, StepRows
from tetrad.worker_svc.media.positions import PromptAxes, check_places


class StepMedia(SlotListener, Protocol):
    """The images of a runner's requests."""

    def check(self, request: NewRequest) -> None:
        """Raise the error of a request whose images the model cannot take."""

    def gather(self, rows: StepRows, given: GivenRows | None) -> GivenRows | None:
        """Return the rows of a step's tokens that are given as embeddings: those of images, and those in `given`.

        Raises InvalidRequest if an image is not in the encoder cache.
        """

    def placed(self, inputs: StepInputs) -> StepInputs:
        """Return the inputs with positions on three axes, and with the ends of what tokens attend to, as the model needs."""


class NoMedia:
    """The StepMedia of a model that takes only text."""

    def add(self, slot: int, request: NewRequest) -> None:
        """Do nothing: `check` has refused images."""

    def remove(self, slot: int) -> None:
        """Do nothing: no slot has images."""

    check = staticmethod(refuse_media)

    def gather(self, rows: StepRows, given: GivenRows | None) -> GivenRows | None:  # noqa: ARG002 - of StepMedia
        """Return `given`."""
        return given

    def placed(self, inputs: StepInputs) -> StepInputs:
        """Return the inputs: every token has its index on all axes, and attends to no later one."""
        return inputs


class _Place(NamedTuple):
    """The place of an image in a prompt: its tokens [start, end), and the number of embeddings before each of them, and after.

    `rank` is None if every token takes an embedding.
    """

    identifier: str
    start: int
    end: int
    rank: Ints | None


class _Prompt(NamedTuple):
    """The images of a request.

    Attributes:
        places: the places of the images.
        end: the index behind the last one.
        axes: the positions on axes; None: the model has none.
        ends: [end], for each token the index behind the last token that it attends to; None: none attends to later ones.
    """

    places: Sequence[_Place]
    end: int
    axes: PromptAxes | None
    ends: Ints | None


class SlotMedia:
    """The StepMedia of a model with a tower.

    Args:
        media: the tower, and the encoder cache from which rows are gathered.
    """

    def __init__(self, media: ModelMedia) -> None:
        self._cache: EncodedItems = media.cache
        self._num_deep, self._uses_mrope = media.tower.num_deep_layers, media.tower.uses_mrope
        self._modalities = [each.modality for each in media.tower.modalities]
        self._is_whole = any(each.is_whole for each in media.tower.modalities)
        self._of_slot: dict[int, _Prompt] = {}
        self._shift_of: dict[int, int] = {}  # slot -> position on all axes minus index, of tokens behind the last image

    def add(self, slot: int, request: NewRequest) -> None:
        """Store the places of a request's images."""
        if spans := request.media:
            axes = PromptAxes(spans) if self._uses_mrope else None
            end = spans[-1].offset + spans[-1].length
            ends = _ends(spans, end) if self._is_whole else None
            self._of_slot[slot] = _Prompt([_place(span) for span in spans], end, axes, ends)
            if axes is not None:
                self._shift_of[slot] = axes.delta

    def remove(self, slot: int) -> None:
        """Delete the slot's images."""
        self._of_slot.pop(slot, None)
        self._shift_of.pop(slot, None)

    def check(self, request: NewRequest) -> None:
        """Raise Unsupported for another modality than the tower's, InvalidRequest for spans that contradict the prompt."""
        behind = 0
        for index, span in enumerate(request.media):
            if span.modality not in self._modalities:
                taken = quoted(self._modalities)
                text = f"The model on this worker takes media of modality {taken}, not {span.modality[:80]!r}."
                raise Unsupported(text, field="mm_features")
            _check_span(span, behind, request.num_prompt_tokens)
            if self._uses_mrope:
                check_places(index, span)
            behind = span.offset + span.length

    def gather(self, rows: StepRows, given: GivenRows | None) -> GivenRows | None:
        """See StepMedia."""
        if not self._of_slot:
            return given
        parts = list(self._parts(rows))
        if not parts:
            return given
        deep = None
        if self._num_deep:
            deep = np.concatenate([self._deep_of(encoded, first, end) for _, encoded, first, end in parts], axis=1)
        own = GivenRows(
            rows=np.concatenate([places for places, *_ in parts]),
            values=np.concatenate([encoded.rows[first:end] for _, encoded, first, end in parts]),
            deep=deep,
        )
        return own if given is None else _joined(own, given)

    def placed(self, inputs: StepInputs) -> StepInputs:
        """See StepMedia."""
        if not self._of_slot or self._of_slot.keys().isdisjoint(slots := inputs.slots.tolist()):
            return inputs
        axes = ends = None
        if not self._shift_of.keys().isdisjoint(slots):
            shifts = np.array([self._shift_of.get(slot, 0) for slot in slots], np.int64)
            axes = np.tile(inputs.positions + np.repeat(shifts, inputs.num_scheduled), (3, 1))
        for row, start in enumerate(inputs.num_computed.tolist()):
            its = self._of_slot.get(slots[row])
            if its is None or start >= its.end:
                continue
            first, count = int(inputs.first_token[row]), int(inputs.num_scheduled[row])
            if its.axes is not None and axes is not None:
                axes[:, first : first + count] = its.axes.of(start, count)
            if its.ends is not None:
                known = its.ends[start : start + count]
                assert known.max() <= start + count, "the engine core ends no step inside an image"
                ends = inputs.positions + 1 if ends is None else ends
                ends[first : first + len(known)] = known
        return inputs if axes is ends is None else replace(inputs, axes=axes, ends=ends)

    def _parts(self, rows: StepRows) -> Iterator[tuple[Ints, EncodedItem, int, int]]:
        """Yield the rows of each image of the step, the image, and the range of its embeddings that these rows take."""
        for row, slot in enumerate(rows.slots.tolist()):
            its, start = self._of_slot.get(slot), int(rows.num_computed[row])
            if its is None or start >= its.end:
                continue
            end, shift = start + int(rows.num_scheduled[row]), int(rows.first_token[row]) - start
            for place in its.places:
                low, high = max(start, place.start), min(end, place.end)
                if low >= high:
                    continue
                tokens, first, last = _embedded(place, low, high)
                if first < last:
                    yield tokens + shift, self._encoded(place.identifier), first, last

    def _encoded(self, identifier: str) -> EncodedItem:
        encoded = self._cache.get(identifier)
        if encoded is None:
            raise InvalidRequest(f"The plan has tokens of media item {identifier[:80]}, which is not in the encoder cache.")
        return encoded

    def _deep_of(self, encoded: EncodedItem, first: int, end: int) -> Any:
        assert encoded.deep is not None, "the tower says that it has these layers"
        return encoded.deep[:, first:end]


def _place(span: MediaSpan) -> _Place:
    rank = None if span.is_embed is None else np.concatenate([[0], np.cumsum(span.is_embed)])
    return _Place(span.identifier, span.offset, span.offset + span.length, rank)


def _ends(spans: Sequence[MediaSpan], end: int) -> Ints:
    """Return for each token up to the last image the index behind the last token that it attends to.

    A token that takes an embedding attends to those of its image up to the next token that takes none, as in transformers'
    masks for Gemma 3.
    """
    ends: Ints = np.arange(end) + 1
    for span in spans:
        if span.is_embed is None:
            ends[span.offset : span.offset + span.length] = span.offset + span.length
            continue
        next_text = np.where(span.is_embed, span.length, np.arange(span.length))
        behind = np.minimum.accumulate(next_text[::-1])[::-1]
        its = ends[span.offset : span.offset + span.length]
        its[span.is_embed] = span.offset + behind[span.is_embed]
    return ends


def _embedded(place: _Place, low: int, high: int) -> tuple[Ints, int, int]:
    """Return the indices of the tokens in [low, high) that take an embedding, and the range of these embeddings."""
    low, high = low - place.start, high - place.start
    if place.rank is None:
        return np.arange(low, high) + place.start, low, high
    ranks = place.rank[low : high + 1]
    return np.flatnonzero(np.diff(ranks)) + low + place.start, int(ranks[0]), int(ranks[-1])


def _joined(own: GivenRows, given: GivenRows) -> GivenRows:
    """Return the rows of both, ascending; rows of `given` get no deep values."""
    rows = np.concatenate([own.rows, given.rows])
    order = np.argsort(rows)
    deep = None
    if own.deep is not None:
        none = np.zeros((len(own.deep), *given.values.shape), np.float32)
        deep = np.ascontiguousarray(np.concatenate([own.deep, none], axis=1)[:, order])
    return GivenRows(rows[order], np.concatenate([own.values, given.values])[order], deep)


def _check_span(span: MediaSpan, behind: int, num_prompt_tokens: int) -> None:
    end = span.offset + span.length
    if not behind <= span.offset < end <= num_prompt_tokens:
        raise InvalidRequest(
            f"A media item has tokens {span.offset} to {end}; items must not overlap, and the prompt has {num_prompt_tokens}."
        )
    marked = span.length if span.is_embed is None else int(span.is_embed.sum())
    if span.is_embed is not None and len(span.is_embed) != span.length:
        raise InvalidRequest(f"is_embed has {len(span.is_embed)} values for {span.length} tokens.")
    if not marked or marked != span.num_embeds:
        raise InvalidRequest(f"A media item has num_embeds {span.num_embeds} for {marked} tokens that take an embedding.")
    if span.grid is not None and int(np.prod(span.grid)) != marked:
        raise InvalidRequest(f"A media item has grid {span.grid} for {marked} tokens that take an embedding.")
