"""Call list: reads a list [call, call, ...] with calls in any syntax."""

from collections.abc import Callable

from tetrad.frontend.parsing.elements.json_scanner import skip_space
from tetrad.frontend.parsing.elements.markers import skip_separator
from tetrad.frontend.parsing.elements.piece_writer import PieceWriter
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting


def read_call_list(
    source: TextSource, writer: PieceWriter, read_one: Callable[[TextSource, PieceWriter], Waiting[bool]]
) -> Waiting[bool]:
    """Read a list of calls. Text that is not a call becomes content, together with the source's record.

    Args:
        source: the text, which starts with the list.
        writer: receives the calls.
        read_one: reads a call and returns whether it was one.

    Returns:
        Whether the list was closed.
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
            ended = ended or (yield from source.skip("]"))  # after the comma behind the last call, as Python allows
    text = source.recorded()
    if not ended:
        writer.content(text)
    return ended
