"""Embeds items: converts embeddings of images and audio in a program's prompts to the files that the frontend takes.

Knows vLLM's forms: a tensor [items, positions, hidden], a list of tensors [positions, hidden], or a dict of tensors by name.
Checks only what is needed to tell the items apart; the tokenizer service checks the tensors. Called by media_prompts.py.
"""

import io
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tetrad.frontend.media.items import IMAGE, VIDEO, MediaSource
from tetrad.services.errors import InvalidRequest, one_line

_FIELD = "multi_modal_data"
_ITEM, _ITEMS = 2, 3
"""Numbers of dimensions of the embeddings of one item, and of several."""


def is_embeds(modality: str, items: Any) -> bool:
    """Return whether the items of a modality are embeddings, by vLLM's rule: not arrays of pixels, nor of samples.

    A tuple is none: torchaudio gives audio as a tensor [channels, samples] and its rate.
    """
    if isinstance(items, Mapping):
        return True
    if _is_tensor(items):
        return items.ndim == _ITEMS or (modality == IMAGE and items.ndim == _ITEM)
    return isinstance(items, list) and bool(items) and _is_tensor(items[0]) and items[0].ndim == _ITEM


def embeds_items(modality: str, items: Any, where: str) -> list[MediaSource]:
    """Return the items, each with its tensors.

    Args:
        modality: "image" or "audio"; others are refused.
        items: of which `is_embeds` is true.
        where: the name of the value, for errors.

    Raises:
        InvalidRequest: a value is no tensor, or the tensors have different numbers of items.
    """
    if modality == VIDEO:
        raise InvalidRequest(f"{where}: video embeddings are not supported; give the video.", field=_FIELD)
    name = f"{modality}_embeds"
    tensors = dict(items) if isinstance(items, Mapping) else {name: items}
    embeds = tensors.pop(name, None)
    if embeds is None:
        raise InvalidRequest(f"{where} has no {name}; it has {', '.join(map(str, tensors)) or 'nothing'}.", field=_FIELD)
    grids = list(tensors.values())
    its = _split(embeds, _sizes(embeds, grids), where)
    others = {key: _split(value, [1] * len(its), f"{where}.{key}") for key, value in tensors.items()}
    for key, values in others.items():
        if len(values) != len(its):
            text = f"{where} has {len(its)} items of {name} and {len(values)} of {key}; there must be as many."
            raise InvalidRequest(text, field=_FIELD)
    return [
        MediaSource(
            where=f"{where}[{place}]",
            embeds={name: _saved(its[place], where), **{key: _saved(value[place], where) for key, value in others.items()}},
            modality=modality,
            is_embeds=True,
        )
        for place in range(len(its))
    ]


def _sizes(embeds: Any, grids: Sequence[Any]) -> list[int]:
    """Return the numbers of embeddings of the items of a tensor [positions of all, hidden]: in proportion to their grids."""
    if not _is_tensor(embeds) or embeds.ndim != _ITEM:
        return []
    total = len(embeds)
    if not grids or not _is_tensor(grids[0]) or grids[0].ndim != _ITEM:
        return [total]
    patches = [int(each) for each in grids[0].prod(-1)]
    return [total * each // max(1, sum(patches)) for each in patches]


def _split(value: Any, sizes: Sequence[int], where: str) -> list[Any]:
    """Return the parts of a value: of a list, its elements; of [items, ...], each item; of other tensors, parts of `sizes`."""
    if isinstance(value, list | tuple):
        return list(value)
    if not _is_tensor(value):
        raise InvalidRequest(f"{where} must be a tensor or a list of tensors, got {type(value).__name__}.", field=_FIELD)
    if value.ndim == _ITEM and sum(sizes) == len(value):
        return list(value.split(list(sizes)))
    return [value] if value.ndim < _ITEM else list(value)


def _saved(value: Any, where: str) -> bytes:
    """Return the file of a tensor."""
    if not _is_tensor(value):
        raise InvalidRequest(f"{where} must hold tensors, got {type(value).__name__}.", field=_FIELD)
    file = io.BytesIO()
    # The package of the tensor, which this one does not need otherwise. A copy: the file of a part would hold the whole tensor.
    try:
        sys.modules["torch"].save(value.detach().cpu().contiguous().clone(), file)
    except RuntimeError as error:  # of a tensor that is sparse, or has no values
        raise InvalidRequest(f"{where} has a tensor that cannot be saved: {one_line(error)}", field=_FIELD) from error
    return file.getvalue()


def _is_tensor(value: object) -> bool:
    return hasattr(value, "detach") and hasattr(value, "ndim")
