"""Detokenizers: convert ids to text, one object per request; incomplete characters are held back.

Called by DetokenizeStream on the event loop. For any split of a sequence, the deltas together equal the `decode` of the whole.
Ids outside the vocabulary have no text, as in `decode` of the Rust library: models often have more rows in their output layer
than tokens. A detokenizer that has raised an error cannot be used any more.
"""

import codecs
from collections.abc import Sequence
from functools import cached_property
from itertools import dropwhile
from typing import Protocol

from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders

from tetrad.services.errors import InternalError
from tetrad.tokenizer_svc.tokenizer.rust_errors import RustErrors

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# An unfinished character has at most three bytes, each of which is decoded to one U+FFFD.
_MAX_HELD_BACK = 3
# Sufficient for an unfinished character and the token before it; decoders treat the start of a text differently.
_CONTEXT_TOKENS = 8
# Maximum number of tokens held back; bytes that do not become a character are then emitted as U+FFFD.
_MAX_WINDOW_TOKENS = 32
# Byte tokens that cannot be the first of a character.
_CONTINUATION_BYTES = frozenset(f"<0x{byte:02X}>" for byte in range(0x80, 0xC0))


class Detokenizer(Protocol):
    """Converts the ids of one request to text."""

    def append(self, token_ids: Sequence[int]) -> str:
        """Return the text that these ids complete; InternalError if the model's decoder fails."""
        ...

    def flush(self) -> str:
        """Return the text that was held back, with U+FFFD for incomplete characters; InternalError as in `append`."""
        ...


class DetokenizerFactory:
    """Makes detokenizers that match a tokenizer's decoder.

    Args:
        rust: the tokenizer; used to decode, never changed.
        special_token_ids: ids without text when special tokens are skipped.
    """

    def __init__(self, rust: RustTokenizer, special_token_ids: Sequence[int]) -> None:
        self._rust = rust
        self._special = frozenset(special_token_ids)
        self._all_pieces = Pieces(rust, frozenset())
        self._plain_pieces = Pieces(rust, self._special)

    def open(
        self, context_token_ids: Sequence[int], *, skip_special_tokens: bool, spaces_between_special_tokens: bool
    ) -> Detokenizer:
        """Return a detokenizer for the ids after the context, of which only the end is used."""
        context = context_token_ids[-_CONTEXT_TOKENS:]
        if self._is_byte_level:
            return ByteDetokenizer(self._plain_pieces if skip_special_tokens else self._all_pieces, context)
        verbatim = frozenset() if skip_special_tokens or spaces_between_special_tokens else self._special
        skipped = self._special if skip_special_tokens else frozenset()
        return WindowDetokenizer(self._rust, context, skipped=skipped, verbatim=verbatim)

    @cached_property
    def _is_byte_level(self) -> bool:
        return isinstance(self._rust.decoder, decoders.ByteLevel)


class Pieces(dict[int, bytes]):
    """The bytes of each token of a byte-level vocabulary, read when first needed and shared by all requests."""

    def __init__(self, rust: RustTokenizer, skipped: frozenset[int]) -> None:
        super().__init__()
        self._rust = rust
        self._skipped = skipped

    def __missing__(self, token_id: int) -> bytes:
        token = None if token_id in self._skipped else self._rust.id_to_token(token_id)
        if token is None:
            return b""
        piece = self[token_id] = _bytes_of(token)
        return piece


class ByteDetokenizer:
    """The detokenizer for byte-level vocabularies: an incremental UTF-8 decoder holds back bytes of unfinished characters."""

    def __init__(self, pieces: Pieces, context_token_ids: Sequence[int]) -> None:
        self._pieces = pieces
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self.append(context_token_ids)

    def append(self, token_ids: Sequence[int]) -> str:
        """Return the text that these ids complete."""
        pieces = self._pieces
        return self._decode(b"".join([pieces[token_id] for token_id in token_ids]))

    def flush(self) -> str:
        """Return U+FFFD if bytes were held back."""
        return self._decode(b"", final=True)


class WindowDetokenizer:
    """The detokenizer for all other decoders: decodes the new tokens with a few before them, and returns the additional text.

    Without the tokens before, the decoder would treat the new ones as the start of a text and strip a space.

    Args:
        skipped: special tokens that have no text.
        verbatim: special tokens that are written unchanged, without the decoder's space between two of them.
    """

    def __init__(
        self, rust: RustTokenizer, context_token_ids: Sequence[int], *, skipped: frozenset[int], verbatim: frozenset[int]
    ) -> None:
        self._rust = rust
        self._skipped = skipped
        self._verbatim = verbatim
        self._window: list[int] = []
        self._emitted = ""  # the part of the window's text that was returned
        self._clean = 0  # number of the window's tokens at the last complete text
        self._last_was_verbatim = False
        # The context may be cut inside a character: the decoder would write U+FFFD for all bytes up to the next other token.
        self.append([*dropwhile(self._is_continuation_byte, context_token_ids)])

    def append(self, token_ids: Sequence[int]) -> str:
        """Return the text that these ids complete."""
        with _DECODING:
            # One id at a time: the text held back must not depend on the split of the ids into calls.
            return "".join([self._append_one(token_id) for token_id in token_ids])

    def flush(self) -> str:
        """Return the text that was held back, with U+FFFD for unfinished characters."""
        with _DECODING:
            return self._advance(self._text(), held_back=0)

    def _append_one(self, token_id: int) -> str:
        token = self._rust.id_to_token(token_id)
        if token is None or token_id in self._skipped:
            return ""
        after_verbatim, self._last_was_verbatim = self._last_was_verbatim, token_id in self._verbatim
        if after_verbatim and self._last_was_verbatim:
            self._restart(token_id)
            self._emitted = self._text()
            return token
        self._window.append(token_id)
        text = self._text()
        held_back = min(_MAX_HELD_BACK, len(text) - len(text.rstrip(_REPLACEMENT)))
        # U+FFFD may be a token itself, which is a whole character.
        is_whole = token.endswith(_REPLACEMENT) or len(self._window) > _MAX_WINDOW_TOKENS
        return self._advance(text, 0 if is_whole else held_back)

    def _is_continuation_byte(self, token_id: int) -> bool:
        return self._rust.id_to_token(token_id) in _CONTINUATION_BYTES

    def _text(self) -> str:
        text = self._decode()
        if not text.startswith(self._emitted):
            # While the last character of a run of bytes is unfinished, the decoder writes U+FFFD for the whole run, also for
            # characters that were complete and returned before. So the text restarts with the last token.
            self._restart(self._window[-1])
            text = self._decode()
        return text

    def _advance(self, text: str, held_back: int) -> str:
        delta = text[len(self._emitted) : len(text) - held_back]
        self._emitted += delta
        if not held_back:
            if len(self._window) > _CONTEXT_TOKENS:
                self._window = self._window[self._clean :]
                self._emitted = self._decode()
            self._clean = len(self._window)
        return delta

    def _restart(self, token_id: int) -> None:
        self._window, self._emitted, self._clean = [token_id], "", 0

    def _decode(self) -> str:
        return self._rust.decode(self._window, skip_special_tokens=False)


def _undecodable(reason: str) -> InternalError:
    return InternalError(f"The model's tokenizer cannot decode the ids: {reason}.")


_DECODING = RustErrors(_undecodable)  # made once: it is entered for each sequence of each step


def _byte_of_letter() -> dict[str, int]:
    """Return the byte of each letter of GPT-2's alphabet: printable bytes are themselves, others are letters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_LETTER = _byte_of_letter()


def _bytes_of(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF_LETTER[letter] for letter in token])
    except KeyError:  # an added token, which is written unchanged
        return token.encode()
