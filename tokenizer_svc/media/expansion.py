"""Expansion: replaces the placeholders of a prompt by what its media become, and shortens such prompts.

Knows texts, token ids and spans; knows no families. In the text each item has few marks, which are repeated among the token
ids: a prompt is encoded as transformers encodes the whole text, in a fraction of the time.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from tetrad.services.errors import InvalidRequest
from tetrad.tokenizer_svc.media.items import Marks, MediaFeature, PlacedMedia
from tetrad.tokenizer_svc.tokenizer.tokenizer import Truncation


class _Queues:
    """The features of a prompt by modality, each taken where the prompt has a placeholder of its modality.

    Attributes:
        taken: the features in the order of their placeholders.
    """

    def __init__(self, features: Sequence[MediaFeature], marks: Mapping[str, Marks]) -> None:
        self._features, self._marks = features, marks
        self._waiting = {name: [each for each in features if each.modality == name] for name in marks}
        self._num_found = dict.fromkeys(marks, 0)
        self.taken: list[MediaFeature] = []

    def take(self, modality: str) -> MediaFeature | None:
        """Return the next feature of a modality; None: there is none left, which `check` refuses."""
        number, waiting = self._num_found[modality], self._waiting[modality]
        self._num_found[modality] += 1
        if number >= len(waiting):
            return None
        self.taken.append(waiting[number])
        return waiting[number]

    def check(self, field: str) -> None:
        """Raise InvalidRequest if placeholders and items differ in number."""
        for modality, number in self._num_found.items():
            _check_number(number, len(self._waiting[modality]), self._marks[modality].placeholder, field)


def expand_text(
    text: str, features: Sequence[MediaFeature], marks: Mapping[str, Marks], *, field: str
) -> tuple[str, list[MediaFeature]]:
    """Return a prompt with the items' texts in place of the placeholders, and the items in the order of these.

    The items of each modality have the order of their placeholders.

    Args:
        text: the prompt.
        features: its items.
        marks: how the prompt writes each of their modalities.
        field: the request's field with the prompt, for errors.

    Raises:
        InvalidRequest: placeholders and items differ in number.
    """
    modalities = {each.placeholder: modality for modality, each in marks.items()}
    longest_first = sorted(modalities, key=len, reverse=True)
    queues = _Queues(features, marks)
    parts = re.split(f"({'|'.join(map(re.escape, longest_first))})", text)
    for place in range(1, len(parts), 2):
        feature = queues.take(modalities[parts[place]])
        parts[place] = feature.expansion.text if feature else parts[place]
    queues.check(field)
    return "".join(parts), queues.taken


def expand_ids(
    token_ids: Sequence[int],
    placeholders: Mapping[str, Sequence[int]],
    features: Sequence[MediaFeature],
    expansions: Mapping[str, Sequence[int]],
    marks: Mapping[str, Marks],
    *,
    field: str,
) -> tuple[list[int], list[MediaFeature]]:
    """Return a prompt of ids with the items' ids in place of the placeholders, and the items in the order of these.

    Args:
        token_ids: the prompt.
        placeholders: ids of the placeholder of each modality.
        features: the prompt's items.
        expansions: ids of the items' texts by text.
        marks: how the prompt writes each modality.
        field: the request's field with the prompt, for errors.

    Raises:
        InvalidRequest: placeholders and items differ in number.
    """
    longest_first = sorted(placeholders.items(), key=lambda each: len(each[1]), reverse=True)
    first_ids = {ids[0] for ids in placeholders.values()}
    queues = _Queues(features, marks)
    expanded: list[int] = []
    start = 0
    for place, token_id in enumerate(token_ids):
        # Most ids are not the first of a placeholder.
        if token_id not in first_ids or place < start:
            continue
        for modality, ids in longest_first:
            if list(token_ids[place : place + len(ids)]) == list(ids):
                expanded += token_ids[start:place]
                feature = queues.take(modality)
                expanded += expansions[feature.expansion.text] if feature else ()
                start = place + len(ids)
                break
    queues.check(field)
    return expanded + list(token_ids[start:]), queues.taken


def repeat_marks(
    token_ids: Sequence[int], features: Sequence[MediaFeature], marks: Mapping[str, Marks], *, field: str
) -> tuple[list[int], list[PlacedMedia]]:
    """Return the ids with all marks repeated, and the places of the items.

    Args:
        token_ids: ids of an expanded text.
        features: the items in the order of the text.
        marks: how the prompt writes each modality.
        field: the request's field with the prompt, for errors.

    Raises:
        InvalidRequest: the text has further marks.
    """
    # Modalities of a model may share a mark.
    for mark_id, mark in {each.mark_id: each.mark for each in marks.values()}.items():
        expected = sum(each.expansion.num_marks for each in features if marks[each.modality].mark_id == mark_id)
        _check_number(token_ids.count(mark_id), expected, mark, field)
    repeated: list[int] = []
    placed = []
    start = 0
    for feature in features:
        mark_id = marks[feature.modality].mark_id
        offset = -1
        for _ in range(feature.expansion.num_marks):
            place = token_ids.index(mark_id, start)
            repeated += token_ids[start:place]
            offset = len(repeated) if offset < 0 else offset
            repeated += [mark_id] * feature.expansion.repeat
            start = place + 1
        length = len(repeated) - offset
        all_embed = length == feature.expansion.num_embeds
        is_embed = b"" if all_embed else bytes(token_id == mark_id for token_id in repeated[offset:])
        placed.append(PlacedMedia(feature, offset, length, is_embed))
    return repeated + list(token_ids[start:]), placed


def shorten(
    token_ids: list[int], placed: Sequence[PlacedMedia], truncation: Truncation, num_around: tuple[int, int]
) -> tuple[list[int], list[PlacedMedia]]:
    """Return at most `truncation.max_tokens` ids, and the items at their new places.

    Args:
        token_ids: ids of the whole prompt.
        placed: its items.
        truncation: which ids are kept.
        num_around: numbers of ids at the beginning and at the end that are kept in any case: BOS and the like.

    Raises:
        InvalidRequest: an item would be split or dropped.
    """
    surplus = len(token_ids) - truncation.max_tokens
    if surplus <= 0:
        return token_ids, list(placed)
    first, last = num_around[0], len(token_ids) - num_around[1]
    start, end = (first, min(first + surplus, last)) if truncation.keep_end else (max(first, last - surplus), last)
    cut = next((each.feature for each in placed if each.offset < end and start < each.offset + each.length), None)
    if cut is not None:
        reason = f"truncate_prompt_tokens={truncation.max_tokens} would split or drop a(n) {cut.modality} item"
        raise InvalidRequest(f"{reason}: the prompt has {len(token_ids)} tokens.", field="max_tokens")
    moved = [each if each.offset < start else dataclasses.replace(each, offset=each.offset - (end - start)) for each in placed]
    return token_ids[:start] + token_ids[end:], moved


def _check_number(number: int, expected: int, placeholder: str, field: str) -> None:
    if number > expected:
        reason = f"Found more '{placeholder}' placeholders in input prompt than actual multimodal data items."
        raise InvalidRequest(f"{reason} The numbers are {number} and {expected}.", field=field)
    if number < expected:
        reason = f"Found fewer '{placeholder}' placeholders in input prompt than actual multimodal data items."
        raise InvalidRequest(f"{reason} The numbers are {number} and {expected}.", field=field)
