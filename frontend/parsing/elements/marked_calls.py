"""Marked calls: the script of models that write JSON calls behind a marker: one call, or an array of calls.

A marker that no call follows is content. So is what follows a call and is not the closing marker.
"""

from tetrad.frontend.parsing.elements.json_calls import read_call_or_calls
from tetrad.frontend.parsing.elements.json_scanner import skip_space
from tetrad.frontend.parsing.elements.markers import Markers, skip_closing
from tetrad.frontend.parsing.elements.piece_writer import PieceWriter
from tetrad.frontend.parsing.elements.script_parser import Script
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting


def marked_calls(*openings: str, closings: tuple[str, ...]) -> Script:
    """Return the script of calls behind any of `openings`.

    Args:
        openings: markers. One that ends in a bracket has the array's own in it.
        closings: markers that may follow the calls.
    """
    markers = Markers(*openings)

    def read(source: TextSource, writer: PieceWriter) -> Waiting[None]:
        while opening := (yield from markers.pass_text(source, writer.content)):
            source.record()
            yield from source.skip(opening.removesuffix("["))
            yield from skip_space(source)
            if (yield from read_call_or_calls(source, writer)):
                yield from skip_closing(source, writer, *closings)

    return read
