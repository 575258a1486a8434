"""Forced calls: parsers of outputs that consist of calls only (`tool_choice` required or named).

A JSON schema (call_schemas.py) constrains the output to calls of the given tools; these parsers read such JSON. They are
Parsers (interface.py): an output may end anywhere.
"""

from tetrad.frontend.parsing.elements.json_calls import read_calls
from tetrad.frontend.parsing.elements.json_scanner import pass_value, skip_space
from tetrad.frontend.parsing.elements.piece_writer import PieceWriter
from tetrad.frontend.parsing.elements.script_parser import ScriptParser
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting


class RequiredParser(ScriptParser):
    """Reads an array of {"name": ..., "parameters": {...}}: see `required_schema`."""

    def __init__(self) -> None:
        super().__init__(_read_required)


class NamedParser(ScriptParser):
    """Reads the arguments of the function that the request named: see `named_schema`."""

    def __init__(self, name: str) -> None:
        def read(source: TextSource, writer: PieceWriter) -> Waiting[None]:
            yield from skip_space(source)
            if (yield from source.more()):
                writer.start(name)
                yield from pass_value(source, writer.arguments)

        super().__init__(read)


def _read_required(source: TextSource, writer: PieceWriter) -> Waiting[None]:
    yield from skip_space(source)
    source.record()
    yield from read_calls(source, writer)
