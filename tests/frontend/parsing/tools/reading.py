"""Parses outputs in every chunking, which must not matter."""

import random

from tetrad.frontend.parsing.elements.interface import Tool
from tetrad.frontend.parsing.elements.pieces import AssistantTurn
from tetrad.frontend.parsing.registry import TOOL_FORMATS, choose_format

PROPERTIES = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "ratio": {"type": "number"},
    "flag": {"type": "boolean"},
    "items": {"type": "array", "items": {"type": "string"}},
    "options": {"type": "object"},
    "maybe": {"type": ["integer", "null"]},
    "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    "unit": {"enum": ["c", "f"]},
    "linked": {"$ref": "#/$defs/linked"},
}
TOOLS = [Tool("f", parameters={"type": "object", "properties": PROPERTIES}), Tool("g")]


def parser_of(format_name, tools=TOOLS):
    return choose_format(TOOL_FORMATS, format_name, "").parser(tools)


def read(parser, chunks):
    """Return the turn that a parser makes of an output that comes in chunks."""
    turn = AssistantTurn()
    for chunk in chunks:
        turn.add(parser.feed(chunk))
    turn.add(parser.finish())
    return turn


def shown(turn):
    """Return what of a turn is the same each time: ids may be random."""
    return turn.content, [(call.name, call.arguments) for call in turn.tool_calls]


def chunkings(text, seed=0, num_random=10):
    """Yield a text whole, character by character, split in every position, and in random pieces."""
    yield [text]
    yield list(text)
    yield from ([text[:position], text[position:]] for position in range(1, len(text)))
    draw = random.Random(seed)
    for _ in range(num_random):
        cuts = sorted(draw.choices(range(len(text) + 1), k=draw.randint(2, 12)))
        yield [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def check_reading(format_name, text, content, calls):
    """Assert what an output means, in every chunking."""
    for chunks in chunkings(text):
        assert shown(read(parser_of(format_name), chunks)) == (content, calls), chunks
