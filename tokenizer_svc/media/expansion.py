"""Expansion: replaces the placeholders of a prompt by what its images become, and shortens such prompts.

Knows texts, token ids and spans; knows no families. In the text each image has few marks, which are repeated among the token
ids: a prompt is encoded as transformers encodes the whole text, in a fraction of the time.
"""

import dataclasses
from collections.abc import Sequence

from tetrad.services.errors import InvalidRequest
from tetrad.tokenizer_svc.media.items import ImageFeature, PlacedImage
from tetrad.tokenizer_svc.tokenizer.tokenizer import Truncation


def expand_text(text: str, placeholder: str, features: Sequence[ImageFeature], *, field: str) -> str:
    """Return a prompt with the images' texts in place of the placeholders, in their order.

    Raises InvalidRequest, which names `field`, if placeholders and images differ in number.
    """
    first, *others = text.split(placeholder)
    _check_number(len(others), len(features), placeholder, field)
    return first + "".join(f"{feature.expansion.text}{other}" for feature, other in zip(features, others, strict=True))


def expand_ids(
    token_ids: Sequence[int], placeholder: Sequence[int], expansions: Sequence[Sequence[int]], *, text: str, field: str
) -> list[int]:
    """Return a prompt of ids with the images' ids in place of the placeholders, in their order.

    Args:
        token_ids: the prompt.
        placeholder: ids of a placeholder.
        expansions: ids of each image's text.
        text: text of a placeholder, for errors.
        field: the request's field with the prompt, for errors.

    Raises:
        InvalidRequest: placeholders and images differ in number.
    """
    size = len(placeholder)
    expanded: list[int] = []
    start = number = 0
    for place in range(len(token_ids) - size + 1):
        # Most ids are not the first of a placeholder.
        if token_ids[place] != placeholder[0] or place < start or list(token_ids[place : place + size]) != list(placeholder):
            continue
        expanded += token_ids[start:place]
        if number < len(expansions):
            expanded += expansions[number]
        number, start = number + 1, place + size
    _check_number(number, len(expansions), text, field)
    return expanded + list(token_ids[start:])


def repeat_marks(
    token_ids: Sequence[int], mark_id: int, mark: str, features: Sequence[ImageFeature], *, field: str
) -> tuple[list[int], list[PlacedImage]]:
    """Return the ids with all marks repeated, and the places of the images.

    Args:
        token_ids: ids of an expanded text.
        mark_id: id of the marks.
        mark: text of a mark, for errors.
        features: the images in their order.
        field: the request's field with the prompt, for errors.

    Raises:
        InvalidRequest: the text has further marks.
    """
    _check_number(token_ids.count(mark_id), sum(each.expansion.num_marks for each in features), mark, field)
    repeated: list[int] = []
    placed = []
    start = 0
    for feature in features:
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
        placed.append(PlacedImage(feature, offset, length, is_embed))
    return repeated + list(token_ids[start:]), placed


def shorten(
    token_ids: list[int], placed: Sequence[PlacedImage], truncation: Truncation, num_around: tuple[int, int]
) -> tuple[list[int], list[PlacedImage]]:
    """Return at most `truncation.max_tokens` ids, and the images at their new places.

    Args:
        token_ids: ids of the whole prompt.
        placed: its images.
        truncation: which ids are kept.
        num_around: numbers of ids at the beginning and at the end that are kept in any case: BOS and the like.

    Raises:
        InvalidRequest: an image would be split or dropped.
    """
    surplus = len(token_ids) - truncation.max_tokens
    if surplus <= 0:
        return token_ids, list(placed)
    first, last = num_around[0], len(token_ids) - num_around[1]
    start, end = (first, min(first + surplus, last)) if truncation.keep_end else (max(first, last - surplus), last)
    if any(image.offset < end and start < image.offset + image.length for image in placed):
        reason = f"truncate_prompt_tokens={truncation.max_tokens} would split or drop a(n) image item"
        raise InvalidRequest(f"{reason}: the prompt has {len(token_ids)} tokens.", field="max_tokens")
    moved = [
        image if image.offset < start else dataclasses.replace(image, offset=image.offset - (end - start)) for image in placed
    ]
    return token_ids[:start] + token_ids[end:], moved


def _check_number(number: int, expected: int, placeholder: str, field: str) -> None:
    if number > expected:
        reason = f"Found more '{placeholder}' placeholders in input prompt than actual multimodal data items."
        raise InvalidRequest(f"{reason} The numbers are {number} and {expected}.", field=field)
    if number < expected:
        reason = f"Found fewer '{placeholder}' placeholders in input prompt than actual multimodal data items."
        raise InvalidRequest(f"{reason} The numbers are {number} and {expected}.", field=field)
