"""Tokenizer: encodes and decodes with the model's own vocabulary.

Called from threads (the Rust library releases the interpreter lock while it runs) and, for methods that cost little, from the
event loop. Immutable once built; knows nothing of messages, limits or handles.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tokenizers import Encoding

from tetrad.services.errors import InvalidRequest
from tetrad.tokenizer_svc.tokenizer.bundle import Bundle, bundle_files, hash_files
from tetrad.tokenizer_svc.tokenizer.detokenizer import Detokenizer, DetokenizerFactory
from tetrad.tokenizer_svc.tokenizer.facts import LoadedTokenizer
from tetrad.tokenizer_svc.tokenizer.rust_errors import RustErrors


@dataclass(frozen=True)
class Truncation:
    """Keep at most `max_tokens` tokens of a text, special tokens included: the last ones if `keep_end`, else the first ones."""

    max_tokens: int
    keep_end: bool = True


@dataclass(frozen=True)
class EncodedPair:
    """The tokens of two texts, joined for a cross-encoder.

    Attributes:
        token_ids: ids of both texts, with the special tokens that the tokenizer is configured to add.
        type_boundary: index of the first token of type 1; None: all tokens are of type 0.
    """

    token_ids: list[int]
    type_boundary: int | None


class Tokenizer:
    """The model's tokenizer.

    Args:
        loaded: the result of a loader; this object owns its Rust tokenizer from now on.
    """

    def __init__(self, loaded: LoadedTokenizer) -> None:
        self.facts = loaded
        self._rust = loaded.rust
        self.special_token_ids = tuple(
            sorted(token_id for token_id, token in self._rust.get_added_tokens_decoder().items() if token.special)
        )
        # Ids may have gaps, so the number of entries would be too small.
        self.vocab_size = max(self._rust.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self._num_added = self._rust.num_special_tokens_to_add(False)
        self._detokenizers = DetokenizerFactory(self._rust, self.special_token_ids)
        self._files = bundle_files(loaded)
        self.hash = hash_files(self._files)

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        truncation: Truncation | None = None,
    ) -> list[int]:
        """Return the token ids of a text. Raises InvalidRequest for a text that the tokenizer's patterns cannot process.

        Blocks for about 1.5 us per token: call it in a thread for a long text.
        """
        with RustErrors(_refuse_text):
            return self._encode(text, add_special_tokens, truncation)

    def encode_whole(self, text: str, *, add_special_tokens: bool) -> tuple[list[int], tuple[int, int]]:
        """Return the ids of a text, and how many ids the tokenizer adds before and after it. Raises the errors of `encode`."""
        with RustErrors(_refuse_text):
            [encoding] = self._rust.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        num_added = self._num_added if add_special_tokens else 0
        num_before = self._num_before(encoding, num_added)
        return encoding.ids, (num_before, num_added - num_before)

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """Return the vocabulary's entry of each id; an id without one has an empty string."""
        return [self._rust.id_to_token(token_id) or "" for token_id in token_ids]

    def encode_pair(self, first: str, second: str, *, max_tokens: int | None = None) -> EncodedPair:
        """Return the tokens of two texts; the end of the second text is cut to have at most `max_tokens` tokens.

        Raises:
            InvalidRequest: the first text leaves no room, or the tokenizer's patterns cannot process a text.
        """
        with RustErrors(_refuse_text):
            [encoding] = self._rust.encode_batch_fast([(first, second)], add_special_tokens=True)
        ids, types, owners = encoding.ids, encoding.type_ids, encoding.sequence_ids
        surplus = 0 if max_tokens is None else len(ids) - max_tokens
        if surplus > 0:
            of_second = [place for place, owner in enumerate(owners) if owner == 1]
            if surplus >= len(of_second):
                num_others = len(ids) - len(of_second)
                text = f"The first text of a pair has {num_others} tokens, and the limit of the pair is {max_tokens}:"
                raise InvalidRequest(f"{text} no token of the second text fits.", field="texts")
            start, end = of_second[-surplus], of_second[-1] + 1
            ids, types = ids[:start] + ids[end:], types[:start] + types[end:]
        return EncodedPair(ids, types.index(1) if 1 in types else None)

    def _encode(self, text: str, add_special_tokens: bool, truncation: Truncation | None) -> list[int]:
        wants_special = add_special_tokens and (truncation is None or truncation.max_tokens >= self._num_added)
        [encoding] = self._rust.encode_batch_fast([text], add_special_tokens=wants_special)
        if truncation is None:
            return encoding.ids
        return self._truncated(encoding, truncation, self._num_added if wants_special else 0)

    def _truncated(self, encoding: Encoding, truncation: Truncation, num_added: int) -> list[int]:
        """Return the ids that are kept: the special ones before and after the text, and those of its beginning or end.

        The library's own truncation makes an object for each part that it cuts off: 0.1 s and 100 MB for a million tokens.
        """
        ids = encoding.ids
        num_before = self._num_before(encoding, num_added)
        end = len(ids) - num_added + num_before
        kept = _cut(ids[num_before:end], truncation.max_tokens - num_added, keep_end=truncation.keep_end)
        return ids[:num_before] + kept + ids[end:]

    @staticmethod
    def _num_before(encoding: Encoding, num_added: int) -> int:
        """Return how many of the ids that the tokenizer adds stand before the text."""
        return next((place for place, added in enumerate(encoding.special_tokens_mask) if not added), num_added)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of ids. Raises InvalidRequest for an id outside the vocabulary."""
        if token_ids and max(token_ids) >= self.vocab_size:
            text = f"Token id {max(token_ids)} is outside the vocabulary, whose size is {self.vocab_size}."
            raise InvalidRequest(text, field="sequences")
        with RustErrors(_refuse_ids):
            return self._rust.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def open_detokenizer(
        self,
        context_token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> Detokenizer:
        """Return a detokenizer for the ids after `context_token_ids`. Costs little."""
        return self._detokenizers.open(
            context_token_ids,
            skip_special_tokens=skip_special_tokens,
            spaces_between_special_tokens=spaces_between_special_tokens,
        )

    def token_id(self, token: str | None) -> int | None:
        """Return the id of a token, given its text; None if there is no such token."""
        return None if token is None else self._rust.token_to_id(token)

    @cached_property
    def bundle(self) -> Bundle:
        """The files as one archive. The first access compresses for about 0.2 s: do it in a thread."""
        return Bundle.pack(self._files)


def _cut(ids: list[int], most: int, *, keep_end: bool) -> list[int]:
    return ids[max(0, len(ids) - most) :] if keep_end else ids[:most]


def _refuse_text(reason: str) -> InvalidRequest:
    return InvalidRequest(f"The model's tokenizer cannot take this text: {reason}.", field="texts")


def _refuse_ids(reason: str) -> InvalidRequest:
    return InvalidRequest(f"The model's tokenizer cannot decode these ids: {reason}.", field="sequences")
