"""Marked calls: the script for models that write a marker and then one JSON call or an array of calls.

A marker without a following call is content. So is any text after a call except the closing marker.
"""

from tetrad.frontend.parsing.elements.json_calls import USUAL_KEYS, CallKeys, read_call_or_calls
from tetrad.frontend.parsing.elements.json_scanner import skip_space
from tetrad.frontend.parsing.elements.markers import Markers, skip_closing
from tetrad.frontend.parsing.elements.piece_writer import PieceWriter
from tetrad.frontend.parsing.elements.script_parser import Script
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting


def marked_calls(*openings: str, closings: tuple[str, ...], keys: CallKeys = USUAL_KEYS) -> Script:
    """Return the script of calls after any of `openings`.

    Args:
        openings: markers. If a marker ends with a bracket, this is the opening bracket of the array.
        closings: markers that may follow the calls.
        keys: the keys of calls.
    """
    markers = Markers(*openings)

    def read(source: TextSource, writer: PieceWriter) -> Waiting[None]:
        while opening := (yield from markers.pass_text(source, writer.content)):
            source.record()
            yield from source.skip(opening.removesuffix("["))
            yield from skip_space(source)
            if (yield from read_call_or_calls(source, writer, keys)):
                yield from skip_closing(source, writer, *closings)

    return read
