"""Stretch end: finds the end of a stretch before the language, such as the model's reasoning, and masks the tokens until it.

Used by one request's Beginning. A mark of special tokens has the same ids in every text. A mark of text has not: a tokenizer
joins its characters with those around it, as in `.</` `think` `>`. So it is found by its characters.
"""

from collections.abc import Sequence
from typing import Protocol

from tetrad.engine_core_svc.structured_output.vocabulary import Vocabulary, Words


class StretchEnd(Protocol):
    """The end of a stretch, in one output."""

    @property
    def mask(self) -> Words:
        """The tokens that may be sampled next [num_words], without EOS."""

    def take(self, token_id: int) -> bool:
        """Advance by a token of the stretch; return whether it completes the end."""


def stretch_end(ids: Sequence[int], vocabulary: Vocabulary) -> StretchEnd:
    """Return the end with these ids; there is at least one."""
    is_text = len(ids) > 1 and not set(ids) & set(vocabulary.special_tokens.values())
    return EndText(ids, vocabulary) if is_text else EndIds(ids, vocabulary)


class EndIds:
    """An end that is one token, or has special tokens. Its ids are found one after the other."""

    def __init__(self, ids: Sequence[int], vocabulary: Vocabulary) -> None:
        self._ids = tuple(ids)
        self._recent: tuple[int, ...] = ()
        self._any = vocabulary.all_but(vocabulary.eos_token_ids)
        # Text never begins with a special token, so an end that begins with one has no other continuation.
        is_completed = len(ids) > 1 and ids[0] in vocabulary.special_tokens.values()
        self._last = vocabulary.ids_mask(ids[-1:]) if is_completed else self._any

    @property
    def mask(self) -> Words:
        """See StretchEnd."""
        before = self._ids[:-1]
        return self._last if before and self._recent[-len(before) :] == before else self._any

    def take(self, token_id: int) -> bool:
        """See StretchEnd."""
        self._recent = (*self._recent, token_id)[-len(self._ids) :]
        return self._recent == self._ids


class EndText:
    """An end that is text. No token may complete it and continue: the text after it belongs to the language."""

    def __init__(self, ids: Sequence[int], vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        # SentencePiece writes a space before each text that it encodes, also before a mark.
        self._text, self._before_last = (vocabulary.bytes_of(each).lstrip(b" ") for each in (ids, ids[:-1]))
        self._recent = b""
        self._any = vocabulary.all_but(vocabulary.eos_token_ids)
        self._completing = self._any & ~vocabulary.longer_than(self._text[len(self._before_last) :])

    @property
    def mask(self) -> Words:
        """See StretchEnd."""
        return self._completing if self._recent.endswith(self._before_last) else self._any

    def take(self, token_id: int) -> bool:
        """See StretchEnd."""
        text = self._recent + self._vocabulary.bytes_of([token_id])
        self._recent = text[-len(self._text) :]
        return self._text in text
