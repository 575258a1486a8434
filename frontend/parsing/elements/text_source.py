"""Text source: provides the arriving text of an output to readers that are written as if it were complete.

A reader is a generator: it yields when it needs more text, and continues with more text or at the end of the output. Its
decisions depend on characters, never on chunk boundaries: so every parser made of readers obeys the law in pieces.py.
Invariant: little text is unread while a reader waits, so feeding single characters takes no more time than feeding all at once.
"""

import re
from collections.abc import Generator, Sequence
from typing import TypeVar

T = TypeVar("T")
# A reader: yields while it waits, returns its result.
Waiting = Generator[None, None, T]


class TextSource:
    """The received and unread text of one output."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False
        self._record: list[str] | None = None

    def add(self, text: str) -> None:
        """Append received text."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self) -> None:
        """Mark the end of the output: from now on no reader waits."""
        self._ended = True

    @property
    def here(self) -> str:
        """The next character; empty if it has not been received. Never waits."""
        return self._text[self._at : self._at + 1]

    @property
    def num_unread(self) -> int:
        """The number of received and unread characters."""
        return len(self._text) - self._at

    def more(self, than: int = 0) -> Waiting[bool]:
        """Wait for more than `than` unread characters. False: the output has ended before."""
        while self.num_unread <= than:
            if self._ended:
                return False
            yield
        return True

    def peek(self) -> Waiting[str]:
        """Wait for the next character and return it, unread. Empty: the output has ended."""
        yield from self.more()
        return self.here

    def starts_with(self, literal: str) -> Waiting[bool]:
        """Wait until it is certain whether `literal` is next, and return this."""
        while not self._ended and self.num_unread < len(literal) and literal.startswith(self._text[self._at :]):
            yield
        return self._text.startswith(literal, self._at)

    def starts_with_any(self, literals: Sequence[str]) -> Waiting[bool]:
        """Wait until it is certain whether one of the literals is next, and return this."""
        for literal in literals:
            if (yield from self.starts_with(literal)):
                return True
        return False

    def ends_within(self, *literals: str) -> bool:
        """Return whether the output has ended within one of these, whose beginning is the unread text. Never waits."""
        rest = self._text[self._at :]
        return self._ended and bool(rest) and any(literal.startswith(rest) for literal in literals)

    def skip(self, literal: str) -> Waiting[bool]:
        """Read `literal` if it is next; return whether it was."""
        found = yield from self.starts_with(literal)
        if found:
            self.take(len(literal))
        return found

    def distance_to(self, pattern: re.Pattern[str]) -> int | None:
        """Return the number of characters before the first match in the received text; None: there is no match yet."""
        match = pattern.search(self._text, self._at)
        return None if match is None else match.start() - self._at

    def tail(self, size: int) -> str:
        """Return the last `size` unread characters at most, and leave them unread."""
        return self._text[max(self._at, len(self._text) - size) :]

    def take(self, size: int) -> str:
        """Read up to `size` received characters."""
        taken = self._text[self._at : self._at + size]
        self._at += len(taken)
        if self._record is not None:
            self._record.append(taken)
        return taken

    def put_back(self, text: str) -> None:
        """Make the last text that was read unread again; it is not in a record."""
        if self._at >= len(text):
            self._at -= len(text)
        else:  # its beginning was received earlier, and is no longer here
            self._text = text + self._text[self._at :]
            self._at = 0

    def read_run(self, pattern: re.Pattern[str]) -> Waiting[str]:
        """Read as long as `pattern` matches, also over later chunks; it must match runs of single characters."""
        parts: list[str] = []
        while (yield from self.more()) and (part := self.take_run(pattern)):
            parts.append(part)
        return "".join(parts)

    def take_run(self, pattern: re.Pattern[str]) -> str:
        """Read the match of `pattern` at the start of the received text; empty: no match."""
        match = pattern.match(self._text, self._at)
        return "" if match is None else self.take(match.end() - self._at)

    def record(self) -> None:
        """Start to record the text that is read, because it may turn out to be content."""
        self._record = []

    def recorded(self) -> str:
        """Return the text read since `record`, and end the record."""
        text = "".join(self._record or ())
        self._record = None
        return text
