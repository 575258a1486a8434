"""Vocabulary: the model's tokens as bytes, for the compilation of grammars. Built once, from the tokenizer's own files.

Masks have one bit for each id of the model; ids beyond the tokenizer's, which pad many models' tables, are never allowed.
"""

import json
from collections.abc import Iterable
from typing import cast

import numpy as np
import numpy.typing as npt
from llguidance import LLTokenizer

from tetrad.services.errors import Unsupported

Words = npt.NDArray[np.uint32]


def ids_in(mask: Words) -> list[int]:
    """Return the ids that a mask has."""
    ids: list[int] = np.flatnonzero(np.unpackbits(np.ascontiguousarray(mask).view(np.uint8), bitorder="little")).tolist()
    return ids


class Vocabulary:
    """Tokens and what they mean to a grammar. Immutable; shared by threads.

    Args:
        tokenizer_json: Hugging Face's tokenizer.json. Parsing it takes some 0.2 s: call this in a thread.
        eos_token_ids: ids that end an output; all of them are allowed where a grammar may end.
        vocab_size: of the model: rows of its output layer.

    Attributes:
        source: the arguments, from which another process makes the same.
        tokens: llguidance's view.
        special_tokens: ids of the tokens that are no text, by name.
        num_words: of a mask: (vocab_size + 31) / 32.

    Raises:
        Unsupported: a tokenizer that llguidance cannot use.
    """

    def __init__(self, tokenizer_json: str, eos_token_ids: Iterable[int], vocab_size: int) -> None:
        added = json.loads(tokenizer_json).get("added_tokens") or []
        self.special_tokens: dict[str, int] = {token["content"]: token["id"] for token in added if token.get("special")}
        self.eos_token_ids = tuple(eos_token_ids)
        self.source = {"tokenizer_json": tokenizer_json, "eos_token_ids": self.eos_token_ids, "vocab_size": vocab_size}
        self.vocab_size = vocab_size
        self.num_words = (vocab_size + 31) // 32
        try:
            self.tokens = _load(tokenizer_json, self.eos_token_ids, vocab_size)
        except Exception as error:  # the library raises what its Rust side gives it
            raise Unsupported(f"Structured outputs cannot use this model's tokenizer: {error}.") from error

    def ids_mask(self, ids: Iterable[int]) -> Words:
        """Return a mask [num_words] of exactly these ids; ids beyond the vocabulary are left out."""
        bits = np.zeros(self.num_words * 32, np.bool_)
        bits[[token_id for token_id in ids if token_id < self.vocab_size]] = True
        return _words(bits)

    def all_but(self, ids: Iterable[int]) -> Words:
        """Return a mask [num_words] of all of the tokenizer's ids but these."""
        bits = np.arange(self.num_words * 32) < min(self.tokens.vocab_size, self.vocab_size)
        return _words(bits) & ~self.ids_mask(ids)


def _words(bits: npt.NDArray[np.bool_]) -> Words:
    return cast(Words, np.packbits(bits, bitorder="little").view("<u4"))


def _load(tokenizer_json: str, eos_token_ids: tuple[int, ...], vocab_size: int) -> LLTokenizer:
    eos = list(eos_token_ids) or None
    tokens = LLTokenizer(tokenizer_json, eos_token=eos)
    # llguidance takes a larger vocabulary, and fills it up with ids that no grammar allows; it takes no smaller one.
    return tokens if tokens.vocab_size >= vocab_size else LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=eos)
