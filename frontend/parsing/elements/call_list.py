"""Call list: reads [call, call, ...] for any syntax of the calls."""

from collections.abc import Callable

from tetrad.frontend.parsing.elements.json_scanner import skip_space
from tetrad.frontend.parsing.elements.markers import skip_separator
from tetrad.frontend.parsing.elements.piece_writer import PieceWriter
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting


def read_call_list(
    source: TextSource, writer: PieceWriter, read_one: Callable[[TextSource, PieceWriter], Waiting[bool]]
) -> Waiting[bool]:
    """Read a list of calls. What is no call becomes content, with all that the source has recorded.

    Args:
        source: where the list begins.
        writer: gets the calls.
        read_one: reads a call and tells whether it was one.

    Returns:
        Whether the list has ended as lists do.
    """
    ended = False
    if (yield from source.skip("[")):
        yield from skip_space(source)
        while not ended and (yield from read_one(source, writer)):
            source.record()
            yield from skip_space(source)
            ended = yield from source.skip("]")
            if not ended and not (yield from skip_separator(source, ",")):
                break
    text = source.recorded()
    if not ended:
        writer.content(text)
    return ended
