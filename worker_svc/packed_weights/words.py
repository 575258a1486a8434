"""Words: unpacks values of few bits from int32 words."""

from collections.abc import Sequence

import torch


def unpack(words: torch.Tensor, bits: int, places: Sequence[int] | None = None) -> torch.Tensor:
    """Return the values [A, B * 32 / bits] uint8 of words [A, B] int32.

    Args:
        words: packed values.
        bits: bits of a value: 1, 2, 4 or 8.
        places: place of each value in its word, 0 for the lowest bits; None: in order.
    """
    order = range(32 // bits) if places is None else places
    mask = (1 << bits) - 1
    return torch.stack([(words >> bits * place & mask).to(torch.uint8) for place in order], 2).flatten(1)


def ones(bits: int) -> int:
    """Return the word of 32 / bits ones of a few bits each: 2, 4 or 8."""
    return 0xFFFFFFFF // ((1 << bits) - 1)
