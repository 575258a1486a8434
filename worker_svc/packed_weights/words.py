"""Words: several values of few bits in an int32."""

from collections.abc import Sequence

import torch


def unpack(words: torch.Tensor, bits: int, places: Sequence[int] | None = None) -> torch.Tensor:
    """Return the values [A, B * 32 / bits] uint8 of words [A, B] int32.

    Args:
        words: packed values.
        bits: of a value: 1, 2, 4 or 8.
        places: of each value in its word, in values from the lowest; None: in order.
    """
    order = range(32 // bits) if places is None else places
    mask = (1 << bits) - 1
    return torch.stack([(words >> bits * place & mask).to(torch.uint8) for place in order], 2).flatten(1)
