"""Call sections: the script for models that write marked calls, each with a head and JSON arguments, in a marked section.

A call that ends behind its head has no arguments. A section without a call is content, and so is text between calls that is not
a mark.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from tetrad.frontend.parsing.elements.json_scanner import pass_value, skip_space
from tetrad.frontend.parsing.elements.markers import Markers, skip_closing
from tetrad.frontend.parsing.elements.piece_writer import PieceWriter
from tetrad.frontend.parsing.elements.script_parser import Script
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting

# Reads the text before the arguments and returns the function's name and the call's id; None: it is not a call.
HeadReader = Callable[[TextSource], Waiting[tuple[str, str] | None]]

NAME = re.compile(r"[\w.:\-]+")


@dataclass(frozen=True)
class SectionMarks:
    """The marks of a section of calls.

    Attributes:
        begins: marks before the section, one of which the model writes; the first is in the models' templates.
        call_begin: mark before a call.
        call_end: mark after it.
        ends: marks after the section.
        fence: optional mark between a call's arguments and its end.
    """

    begins: tuple[str, ...]
    call_begin: str
    call_end: str
    ends: tuple[str, ...]
    fence: str = ""


def sectioned_calls(marks: SectionMarks, read_head: HeadReader) -> Script:
    """Return the script of calls between `marks`."""
    # A call outside of a section is accepted, too.
    markers = Markers(*marks.begins, marks.call_begin)
    closings = tuple(mark for mark in (marks.fence, marks.call_end, *marks.ends) if mark)
    call_ends = (f"{marks.fence}{marks.call_end}", marks.call_end)

    def read(source: TextSource, writer: PieceWriter) -> Waiting[None]:
        while (yield from markers.pass_text(source, writer.content)):
            source.record()
            for begin in marks.begins:
                if (yield from source.skip(begin)):
                    yield from skip_space(source)
            head = (yield from read_head(source)) if (yield from source.skip(marks.call_begin)) else None
            text = source.recorded()
            if head is not None and (yield from source.peek()) == "{":
                writer.start(*head)
                yield from pass_value(source, writer.arguments)
                yield from skip_closing(source, writer, *closings)
            elif head is not None and (yield from source.starts_with_any(call_ends)):
                writer.start(*head)
                writer.arguments("{}")
                yield from skip_closing(source, writer, *closings)
            else:
                writer.content(text)

    return read
