"""Expansion: replaces the placeholders in a prompt's token ids by those of its images, and shortens such prompts.

Knows token ids and spans; knows no families. Placeholders are counted here, so that each image has its own.
"""

from collections.abc import Sequence

from tetrad.services.errors import InvalidRequest
from tetrad.tokenizer_svc.images.items import ImageFeature, PlacedImage
from tetrad.tokenizer_svc.tokenizer.tokenizer import Truncation


def check_placeholders(token_ids: Sequence[int], image_id: int, num_images: int, *, text: str, field: str) -> None:
    """Raise InvalidRequest unless the prompt has one placeholder for each image; `text` is the placeholder's."""
    number = token_ids.count(image_id)
    if number > num_images:
        reason = f"Found more '{text}' placeholders in input prompt than actual multimodal data items."
        raise InvalidRequest(f"{reason} The numbers are {number} and {num_images}.", field=field)
    if number < num_images:
        reason = f"Found {number} '{text}' placeholders in input prompt for {num_images} multimodal data items."
        raise InvalidRequest(f"{reason} The chat template or the prompt must write one for each item.", field=field)


def expand(token_ids: Sequence[int], image_id: int, features: Sequence[ImageFeature]) -> tuple[list[int], list[PlacedImage]]:
    """Return the ids with all placeholders replaced in their order, and the images' places."""
    expanded: list[int] = []
    placed = []
    start = 0
    for feature in features:
        place = token_ids.index(image_id, start)
        expanded += token_ids[start:place]
        placed.append(PlacedImage(feature, len(expanded) + feature.start))
        expanded += feature.token_ids
        start = place + 1
    return expanded + list(token_ids[start:]), placed


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
    before, after = num_around
    surplus = len(token_ids) - truncation.max_tokens
    if surplus <= 0:
        return token_ids, list(placed)
    body_end = len(token_ids) - after
    dropped = (before, min(before + surplus, body_end)) if truncation.keep_end else (max(before, body_end - surplus), body_end)
    for each in placed:
        feature = each.feature
        first = each.offset - feature.start
        if first < dropped[1] and dropped[0] < first + len(feature.token_ids):
            reason = f"truncate_prompt_tokens={truncation.max_tokens} would split or drop a(n) image item"
            raise InvalidRequest(f"{reason}: the prompt has {len(token_ids)} tokens.", field="max_tokens")
    shift = dropped[1] - dropped[0]
    moved = [PlacedImage(each.feature, each.offset - (shift if each.offset >= dropped[1] else 0)) for each in placed]
    return token_ids[: dropped[0]] + token_ids[dropped[1] :], moved
