"""Words: unpacks values of few bits from words of 32 bits or from bytes, and packs them."""

from collections.abc import Sequence

import torch


def unpack(words: torch.Tensor, bits: int, places: Sequence[int] | None = None) -> torch.Tensor:
    """Return the values [A, B * p] uint8 of words [A, B] int32 or uint8, with p values in each; see values_per_word.

    Args:
        words: packed values.
        bits: bits of a value: 1, 2, 4 or 8.
        places: place of each value in its word, 0 for the lowest bits; None: in order.
    """
    order = range(values_per_word(words, bits)) if places is None else places
    mask = (1 << bits) - 1
    return torch.stack([(words >> bits * place & mask).to(torch.uint8) for place in order], 2).flatten(1)


def values_per_word(words: torch.Tensor, bits: int) -> int:
    """Return the number of values of a few bits in a word or a byte."""
    return words.element_size() * 8 // bits


def pack(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the words [A, B * bits / 32] int32 of values [A, B] uint8, in order."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=values.device)
    return (values.to(torch.int32).reshape(len(values), -1, 32 // bits) << shifts).sum(2, dtype=torch.int32)


def ones(bits: int) -> int:
    """Return the word of 32 / bits ones of a few bits each: 2, 4 or 8."""
    return 0xFFFFFFFF // ((1 << bits) - 1)
