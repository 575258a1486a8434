"""Sight of a layer: finds the window or chunk of a layer from transformers' mask functions."""

from itertools import product

import torch

from tetrad.worker_svc.attention.paged_metadata import Sight
from tetrad.worker_svc.models.transformers_backend.interface import MaskFunction, UnservableError

_POSITIONS = (0, 1, 2, 3, 7, 16, 63, 200, 1025, 5000)


def sight_of(function: MaskFunction, local_size: int | None) -> Sight:
    """Return the sight of a mask function; raise UnservableError if paged attention does not support it.

    Args:
        function: the mask function, evaluated at positions around multiples of `local_size`.
        local_size: window or chunk size of the layer; None: full attention.
    """
    size = local_size or 0
    positions = sorted({*_POSITIONS, *(max(0, times * size + step) for times in (1, 2, 3) for step in (-1, 0, 1))})
    pairs = list(product(positions, positions))
    try:
        seen = [bool(function(*map(torch.tensor, (0, 0, query, key)))) for query, key in pairs]
    except Exception as error:  # a model's code can raise any error for positions beyond its inputs
        raise UnservableError("its mask depends on more than positions") from error
    candidates = [Sight(None)] if local_size is None else [Sight(local_size), Sight(None, local_size)]
    for sight in candidates:
        if seen == [sees(sight, query, key) for query, key in pairs]:
            return sight
    raise UnservableError("its mask is neither causal, a sliding window nor a chunk")


def sees(sight: Sight, query: int, key: int) -> bool:
    """Return whether a query at one position attends to the key at another."""
    in_window = sight.window is None or key > query - sight.window
    in_chunk = sight.chunk is None or key // sight.chunk == query // sight.chunk
    return key <= query and in_window and in_chunk
