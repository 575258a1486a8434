"""Vocabulary: the model's tokens as bytes, for the compilation of grammars. Built once, from the tokenizer's own files.

Masks have one bit for each id of the model. Ids beyond those of the tokenizer, which pad many models' tables, are not allowed.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer

from tetrad.services.errors import Unsupported

Words = npt.NDArray[np.uint32]


def ids_in(mask: Words) -> list[int]:
    """Return the ids that a mask allows."""
    ids: list[int] = np.flatnonzero(np.unpackbits(np.ascontiguousarray(mask).view(np.uint8), bitorder="little")).tolist()
    return ids


class Vocabulary:
    """The model's tokens, in the form that grammars need. Immutable; shared by threads.

    Args:
        tokenizer_json: Hugging Face's tokenizer.json. Parsing it takes about 0.2 s: make a Vocabulary in a thread.
        eos_token_ids: ids that end an output; all of them are allowed where a grammar may end.
        vocab_size: number of rows of the model's output layer.

    Attributes:
        source: the arguments, from which another process makes the same vocabulary.
        tokens: llguidance's form of the vocabulary.
        special_tokens: ids of the tokens that are not text, by name.
        num_words: number of words of a mask: (vocab_size + 31) // 32.

    Raises:
        Unsupported: llguidance cannot use this tokenizer.
    """

    def __init__(self, tokenizer_json: str, eos_token_ids: Iterable[int], vocab_size: int) -> None:
        added = json.loads(tokenizer_json).get("added_tokens") or []
        self.special_tokens: dict[str, int] = {token["content"]: token["id"] for token in added if token.get("special")}
        self.eos_token_ids = tuple(eos_token_ids)
        self.source = {"tokenizer_json": tokenizer_json, "eos_token_ids": self.eos_token_ids, "vocab_size": vocab_size}
        self.vocab_size = vocab_size
        self.num_words = (vocab_size + 31) // 32
        self._longer: dict[bytes, Words] = {}  # results of longer_than, which takes 2 ms
        try:
            self.tokens = _load(tokenizer_json, self.eos_token_ids, vocab_size)
        except Exception as error:  # the library raises any error of its Rust code
            raise Unsupported(f"Structured outputs cannot use this model's tokenizer: {error}.") from error

    def bytes_of(self, ids: Sequence[int]) -> bytes:
        """Return the text of ids; a special token has its name."""
        return self.tokens.decode_bytes(list(ids))

    def longer_than(self, piece: bytes) -> Words:
        """Return a mask [num_words] of the tokens that begin with a text and continue; none for a part of a character."""
        mask = self._longer.get(piece)
        if mask is None:
            mask = self._longer[piece] = self._find_longer(piece)
        return mask

    def ids_mask(self, ids: Iterable[int]) -> Words:
        """Return a mask [num_words] of exactly these ids; ids beyond the vocabulary are ignored."""
        bits = np.zeros(self.num_words * 32, np.bool_)
        bits[[token_id for token_id in ids if token_id < self.vocab_size]] = True
        return _words(bits)

    def all_but(self, ids: Iterable[int]) -> Words:
        """Return a mask [num_words] of all ids of the tokenizer except these."""
        bits = np.arange(self.num_words * 32) < min(self.tokens.vocab_size, self.vocab_size)
        return _words(bits) & ~self.ids_mask(ids)

    def _find_longer(self, piece: bytes) -> Words:
        try:
            text = re.escape(piece.decode())
        except UnicodeDecodeError:
            return self.ids_mask(())
        return self._beginning_of(f"{text}(?s:.)+") & ~self._beginning_of(text)

    def _beginning_of(self, pattern: str) -> Words:
        """Return a mask [num_words] of the tokens that may begin a text of a regular expression."""
        matcher = LLMatcher(self.tokens, LLMatcher.grammar_from_regex(pattern), log_level=0)
        return np.frombuffer(matcher.compute_bitmask(), "<u4")[: self.num_words].copy()


def _words(bits: npt.NDArray[np.bool_]) -> Words:
    return cast(Words, np.packbits(bits, bitorder="little").view("<u4"))


def _load(tokenizer_json: str, eos_token_ids: tuple[int, ...], vocab_size: int) -> LLTokenizer:
    eos = list(eos_token_ids) or None
    tokens = LLTokenizer(tokenizer_json, eos_token=eos)
    # llguidance accepts a larger vocabulary size, and adds ids that no grammar allows; it accepts no smaller one.
    return tokens if tokens.vocab_size >= vocab_size else LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=eos)
