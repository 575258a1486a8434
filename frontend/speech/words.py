"""Words: splits the tokens of a segment into words. Pure; knows texts, no requests.

Source: transformers' `_combine_tokens_into_words` (models/whisper/tokenization_whisper.py), as in openai/whisper.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
_BEFORE = "\"'“¡¿([{-"
"""Punctuation that belongs to the word behind it."""
_BEHIND = "\"'.。,，!！?？:：”)]}、"
"""Punctuation that belongs to the word before it."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word.

    Attributes:
        text: with the white space before it.
        start_s: its start in the recording.
        end_s: its end.
    """

    text: str
    start_s: float
    end_s: float


@dataclass(slots=True)
class Part:
    """Consecutive tokens [first, last] of a segment, and their text."""

    text: str
    first: int
    last: int

    def join(self, other: "Part") -> None:
        """Take over the tokens of the part behind this one."""
        self.text, self.last = self.text + other.text, other.last


def split_words(prefixes: Sequence[str], *, has_spaces: bool) -> list[Part]:
    """Return the words of a segment, in order.

    Args:
        prefixes: the text of the first token, of the first two, and so on up to the whole segment.
        has_spaces: whether the language puts spaces between words; otherwise, each character is a word.
    """
    characters = _characters(prefixes)
    words = _between_spaces(characters) if has_spaces else characters
    return _with_punctuation(words)


def _characters(prefixes: Sequence[str]) -> list[Part]:
    """Return the smallest groups of tokens with whole characters: a token may have some bytes of one."""
    found: list[Part] = []
    known, first = "", 0
    for place, prefix in enumerate(prefixes):
        if prefixes[-1].startswith(prefix):
            found.append(Part(prefix[len(known) :], first, place))
            known, first = prefix, place + 1
    return found


def _between_spaces(parts: Sequence[Part]) -> list[Part]:
    found: list[Part] = []
    for part in parts:
        if not found or part.text.startswith(" ") or part.text.strip() in _PUNCTUATION:
            found.append(part)
        else:
            found[-1].join(part)
    return found


def _with_punctuation(words: Sequence[Part]) -> list[Part]:
    """Join punctuation with the word to which it belongs."""
    ahead: list[Part] = []
    for word in reversed(words):
        if ahead and word.text.startswith(" ") and word.text.strip() in _BEFORE:
            word.join(ahead.pop())
        ahead.append(word)
    found: list[Part] = []
    for word in reversed(ahead):
        if found and not found[-1].text.endswith(" ") and word.text in _BEHIND:
            found[-1].join(word)
        else:
            found.append(word)
    return [word for word in found if word.text]
