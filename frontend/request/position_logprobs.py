"""Position log-probabilities: the candidates of each position, as one dict a position or as flat lists of all positions.

Public Python types with vLLM's names. An answer with many positions has a million candidates: as dicts they are as
many objects, as flat lists a few. logprobs.py makes both from the engine core's columns.
"""

from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from itertools import chain
from typing import Any, NoReturn, Self, overload

import msgspec


class Logprob(msgspec.Struct, gc=False):
    """Log-probability of one candidate. `rank` is 1 for the most likely token, None if unknown.

    The garbage collector does not visit it: an output may have a million candidates, and a collection stops all other requests.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


PositionLogprobs = dict[int, Logprob]
"""Token id -> Logprob of one position. The sampled (for a prompt: the actual) token comes first, then the top ones."""

TextOf = Callable[[int], str | None]
"""Returns the text of a token."""


class FlatLogprobs(MutableSequence[Any]):
    """The candidates of all positions in flat lists; as a sequence it has one dict for each position, made when it is read.

    The first token of a prompt has no candidates, and its dict is empty. Positions are appended, and never replaced. The actual
    token of a position comes first, and again among the most likely ones.

    Attributes:
        start_indices, end_indices: for each position, where its candidates begin and end in the other lists.
        token_ids, logprobs, ranks: the candidates.
    """

    def __init__(
        self,
        start_indices: Iterable[int] = (),
        end_indices: Iterable[int] = (),
        token_ids: Iterable[int] = (),
        logprobs: Iterable[float] = (),
        ranks: Iterable[int | None] = (),
        decoded_tokens: Iterable[str | None] = (),
    ) -> None:
        self.start_indices, self.end_indices = [*start_indices], [*end_indices]
        self.token_ids, self.logprobs, self.ranks = [*token_ids], [*logprobs], [*ranks]
        self._texts = [*decoded_tokens]
        self._unnamed: list[tuple[int, int, TextOf]] = []

    @property
    def decoded_tokens(self) -> list[str | None]:
        """The texts of the candidates. Those of wide positions are found when they are first read."""
        for start, stop, text_of in self._unnamed:
            self._texts[start:stop] = map(text_of, self.token_ids[start:stop])
        self._unnamed.clear()
        return self._texts

    @property
    def of_actual(self) -> list[float]:
        """The log-probability of the actual token of each position; the first position of a prompt has none."""
        pairs = zip(self.start_indices, self.end_indices, strict=True)
        return [self.logprobs[start] for start, stop in pairs if start < stop]

    def append(self, value: PositionLogprobs | None) -> None:
        """Add the candidates of the next position; None: it has none."""
        found = value or {}
        self._add(found, [each.logprob for each in found.values()], [each.rank for each in found.values()])
        self._texts += [each.decoded_token for each in found.values()]

    def append_columns(
        self, token_ids: Sequence[int], logprobs: Sequence[float], rank: int, text: str | None, text_of: TextOf, *, names: bool
    ) -> None:
        """Add the candidates of the next position: the actual token, then the most likely ones in falling order.

        Args:
            token_ids, logprobs: the candidates.
            rank, text: rank and text of the actual token.
            text_of: returns the texts of the others.
            names: whether the texts are found now, or when they are first read.
        """
        start = len(self.token_ids)
        self._add(token_ids, logprobs, chain((rank,), range(1, len(token_ids))))
        self._texts.append(text)
        self._texts += map(text_of, token_ids[1:]) if names else [None] * (len(token_ids) - 1)
        if not names:
            self._unnamed.append((start + 1, len(self.token_ids), text_of))

    def _add(self, token_ids: Iterable[int], logprobs: Iterable[float], ranks: Iterable[int | None]) -> None:
        self.start_indices.append(len(self.token_ids))
        self.token_ids += token_ids
        self.logprobs += logprobs
        self.ranks += ranks
        self.end_indices.append(len(self.token_ids))

    def extend(self, values: Iterable[PositionLogprobs | None]) -> None:
        """Add several positions."""
        if not isinstance(values, FlatLogprobs):
            for value in values:
                self.append(value)
            return
        base = len(self.token_ids)
        self.start_indices += [base + each for each in values.start_indices]
        self.end_indices += [base + each for each in values.end_indices]
        self.token_ids += values.token_ids
        self.logprobs += values.logprobs
        self.ranks += values.ranks
        self._texts += values._texts  # noqa: SLF001 - of this class
        self._unnamed += [(base + start, base + stop, text_of) for start, stop, text_of in values._unnamed]  # noqa: SLF001

    def __add__(self, other: Iterable[PositionLogprobs | None]) -> "FlatLogprobs":
        joined = self[:]
        joined.extend(other)
        return joined

    def __len__(self) -> int:
        return len(self.start_indices)

    @overload
    def __getitem__(self, index: int) -> PositionLogprobs: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> "PositionLogprobs | FlatLogprobs":
        """Return the dict of a position, or some positions as flat lists."""
        if isinstance(index, slice):
            return self._part(range(len(self))[index])
        found: PositionLogprobs = {}
        texts = self.decoded_tokens
        for at in range(self.start_indices[index], self.end_indices[index]):
            # The actual token is often also one of the top tokens: it keeps its first place.
            found.setdefault(self.token_ids[at], Logprob(self.logprobs[at], self.ranks[at], texts[at]))
        return found

    def _part(self, positions: range) -> "FlatLogprobs":
        part = type(self)()
        if positions.step == 1 and len(positions):
            first, last = self.start_indices[positions[0]], self.end_indices[positions[-1]]
            part = type(self)(
                [self.start_indices[each] - first for each in positions],
                [self.end_indices[each] - first for each in positions],
                self.token_ids[first:last],
                self.logprobs[first:last],
                self.ranks[first:last],
                self._texts[first:last],
            )
            inside = [(max(start, first), min(stop, last), text_of) for start, stop, text_of in self._unnamed]
            part._unnamed = [(start - first, stop - first, text_of) for start, stop, text_of in inside if start < stop]  # noqa: SLF001
            return part
        for each in positions:
            part.extend(self[each : each + 1])
        return part

    def __iter__(self) -> Iterator[PositionLogprobs]:
        return (self[index] for index in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FlatLogprobs) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment] # it is changed

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise TypeError("Positions of FlatLogprobs cannot be replaced.")

    def __delitem__(self, index: Any) -> NoReturn:
        raise TypeError("Positions of FlatLogprobs cannot be deleted.")

    def insert(self, index: int, value: Any) -> NoReturn:  # noqa: ARG002 - of the base
        """Raise TypeError: positions are appended."""
        raise TypeError("Positions cannot be inserted into FlatLogprobs.")


Positions = list[PositionLogprobs] | FlatLogprobs
"""The candidates of consecutive positions."""


def actual_logprobs(positions: Positions) -> list[float]:
    """Return the log-probability of the actual token of each position, which is the first candidate."""
    if isinstance(positions, FlatLogprobs):
        return positions.of_actual
    return [next(iter(position.values())).logprob for position in positions]


def joined(earlier: Positions | None, later: Positions) -> Positions:
    """Return the positions of both, which are of one kind."""
    if earlier is None:
        return later
    if isinstance(earlier, FlatLogprobs) or isinstance(later, FlatLogprobs):
        return (earlier if isinstance(earlier, FlatLogprobs) else FlatLogprobs()) + later
    return earlier + later
