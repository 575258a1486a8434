"""Call list: reads a list of calls in any syntax: [call, call, ...].

A malformed call does not take the others with it. Its text becomes content; if the list has no other call, all of it does.
"""

from collections.abc import Callable

from tetrad.frontend.parsing.elements.json_scanner import skip_space
from tetrad.frontend.parsing.elements.piece_writer import PieceWriter
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting

# Reads one element. True: a call, which it has written; None: a malformed call, up to its end; False: something else.
ElementReader = Callable[[TextSource, PieceWriter], Waiting[bool | None]]


class CallElements:
    """Reads the elements of one list.

    Args:
        writer: receives the calls and malformed ones.
        read_one: reads an element.
    """

    def __init__(self, writer: PieceWriter, read_one: ElementReader) -> None:
        self._writer = writer
        self._read_one = read_one
        self._has_calls = False
        self._malformed: list[str] = []
        # The text from the source's record that is content if no call follows.
        self._held: list[str] = []

    def read(self, source: TextSource) -> Waiting[bool]:
        """Read the next element. False: it is not a call."""
        before = source.recorded()
        source.record()
        read = yield from self._read_one(source, self._writer)
        text = source.recorded()
        source.record()
        if read:
            self._show_malformed()
            self._has_calls = True
        elif read is None:
            self._malformed.append(text)
            self._held += (before, text)
            if self._has_calls:
                self._show_malformed()
        else:
            self._held += (before, text)
        return read is not False

    def end(self, source: TextSource, *, closed: bool) -> Waiting[bool]:
        """Finish the list; return whether it has calls and is closed."""
        rest = "".join((*self._held, source.recorded()))
        # Separators at the end of the output belong to the list.
        if not self._has_calls or (not closed and (rest.strip(", \t\r\n") or (yield from source.more()))):
            self._writer.content(rest)
        return self._has_calls and closed

    def _show_malformed(self) -> None:
        self._writer.content("".join(self._malformed))
        self._malformed.clear()
        self._held.clear()


def read_call_list(source: TextSource, writer: PieceWriter, read_one: ElementReader) -> Waiting[bool]:
    """Read a list of calls. Text that is not a call becomes content, together with the source's record.

    Args:
        source: the text, which starts with the list.
        writer: receives the calls.
        read_one: reads an element.

    Returns:
        Whether the list has calls and was closed.
    """
    elements = CallElements(writer, read_one)
    ended = False
    if (yield from source.skip("[")):
        yield from skip_space(source)
        while not ended and (yield from elements.read(source)):
            yield from skip_space(source)
            ended = yield from source.skip("]")
            if not ended:
                if not (yield from source.skip(",")):
                    break
                yield from skip_space(source)
                ended = yield from source.skip("]")  # after the comma behind the last call, as Python allows
    return (yield from elements.end(source, closed=ended))
