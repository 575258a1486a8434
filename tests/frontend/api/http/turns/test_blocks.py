"""Blocks of a turn: the same for every chunking, one open at a time, and none of mere white space."""

import pytest

from tests.frontend.turns import PIECES, chunked
from tetrad.frontend.api.http.turns.blocks import Blocks, Closed, Grown, Opened
from tetrad.frontend.parsing.elements.pieces import Content, Reasoning, ToolCallArguments, ToolCallStart

EXPECTED = {
    "text": [("text", "The quick brown fox.", "")],
    "reasoning": [("reasoning", "Let me think.", ""), ("text", "The answer is 4.", "")],
    "call": [("call", '{"city": "Zürich"}', "get_weather")],
    "calls": [("call", '{"city": "Paris"}', "get_weather"), ("call", "{}", "get_time")],
    "all": [
        ("reasoning", "I need the weather.", ""),
        ("text", "\n\nLet me look.", ""),
        ("call", '{"city": "Paris"}', "get_weather"),
        ("call", "{}", "get_time"),
    ],
    "call without arguments": [("call", "", "get_time")],
    "white space between": [("call", "{}", "get_time")],
    "only white space": [("text", " \n", "")],
    "interleaved": [("reasoning", "a", ""), ("text", "b", ""), ("reasoning", "c", ""), ("text", "d", "")],
    "nothing": [],
}


@pytest.mark.parametrize("kind", PIECES)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("together", [True, False])
def test_steps_add_up_to_the_same_blocks_in_any_chunking(kind, size, together):
    blocks = Blocks()
    pieces = chunked(PIECES[kind], size)
    steps = blocks.feed(pieces) if together else [step for piece in pieces for step in blocks.feed([piece])]
    steps += blocks.finish()

    assert [(block.kind, block.text, block.name) for block in blocks.blocks] == EXPECTED[kind]
    grown = dict.fromkeys(range(len(EXPECTED[kind])), "")
    open_block = None
    for step in steps:
        match step:
            case Opened(block):
                assert open_block is None
                open_block = block.index
            case Grown(block, text):
                assert open_block == block.index
                grown[block.index] += text
            case Closed(block):
                assert open_block == block.index
                open_block = None
    assert open_block is None
    assert list(grown.values()) == [text for _, text, _ in EXPECTED[kind]]


def test_calls_keep_their_ids():
    blocks = Blocks()

    blocks.feed([ToolCallStart(0, "f", "a"), ToolCallArguments(0, "{}"), ToolCallStart(1, "g", "b")])

    assert [block.call_id for block in blocks.blocks] == ["a", "b"]


def test_white_space_before_text_is_part_of_it():
    blocks = Blocks()

    blocks.feed([Reasoning("so"), Content("\n"), Content("\n"), Content("yes")])

    assert [block.text for block in blocks.blocks] == ["so", "\n\nyes"]
