"""Text source: an output as it arrives, for readers written as if the whole text were there.

A reader is a generator: it yields where it needs more text, and continues with more text or at the end of the output. Its
decisions depend on characters, never on chunk boundaries: so every parser made of readers obeys the law in pieces.py.
Invariant: little text is unread while a reader waits, so feeding single characters costs no more than feeding the whole.
"""

import re
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
# A reader: yields while it waits, returns what it found.
Waiting = Generator[None, None, T]


class TextSource:
    """The part of one output that has come and is not yet read."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False
        self._record: list[str] | None = None

    def add(self, text: str) -> None:
        """Append what has come."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self) -> None:
        """Say that nothing more comes: from here on no reader waits."""
        self._ended = True

    @property
    def here(self) -> str:
        """The next character if it has come, else empty. Never waits."""
        return self._text[self._at : self._at + 1]

    @property
    def num_unread(self) -> int:
        """How many characters have come and are not read."""
        return len(self._text) - self._at

    def more(self, than: int = 0) -> Waiting[bool]:
        """Wait for more than so many unread characters. False: the output has ended before."""
        while self.num_unread <= than:
            if self._ended:
                return False
            yield
        return True

    def peek(self) -> Waiting[str]:
        """Wait for the next character and leave it. Empty: the output has ended."""
        yield from self.more()
        return self.here

    def starts_with(self, literal: str) -> Waiting[bool]:
        """Wait until it is certain whether `literal` comes next."""
        while not self._ended and self.num_unread < len(literal) and literal.startswith(self._text[self._at :]):
            yield
        return self._text.startswith(literal, self._at)

    def skip(self, literal: str) -> Waiting[bool]:
        """Read `literal` if it comes next."""
        found = yield from self.starts_with(literal)
        if found:
            self.take(len(literal))
        return found

    def distance_to(self, pattern: re.Pattern[str]) -> int | None:
        """Return how many characters come before the first match in what has come; None: there is no match yet."""
        match = pattern.search(self._text, self._at)
        return None if match is None else match.start() - self._at

    def tail(self, size: int) -> str:
        """Return the last up to `size` unread characters and leave them."""
        return self._text[max(self._at, len(self._text) - size) :]

    def take(self, size: int) -> str:
        """Read up to `size` characters of what has come."""
        taken = self._text[self._at : self._at + size]
        self._at += len(taken)
        if self._record is not None:
            self._record.append(taken)
        return taken

    def read_run(self, pattern: re.Pattern[str]) -> Waiting[str]:
        """Read as long as `pattern`, which matches runs of single characters, matches."""
        parts: list[str] = []
        while (yield from self.more()) and (part := self.take_run(pattern)):
            parts.append(part)
        return "".join(parts)

    def take_run(self, pattern: re.Pattern[str]) -> str:
        """Read what `pattern` matches of what has come."""
        match = pattern.match(self._text, self._at)
        return "" if match is None else self.take(match.end() - self._at)

    def record(self) -> None:
        """Remember what is read from here on: it may turn out not to be what it seems."""
        self._record = []

    def recorded(self) -> str:
        """Return all that was read since `record`, and forget it."""
        text = "".join(self._record or ())
        self._record = None
        return text
