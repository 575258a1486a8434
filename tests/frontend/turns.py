"""Turns for tests of the chat APIs: outputs in Hermes' and Qwen's formats, in any chunking."""

import itertools
import json

from tests.frontend.fakes import EOS
from tetrad.frontend.parsing.elements.pieces import Content, Reasoning, ToolCallArguments, ToolCallStart

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


# The model's output in each kind of turn.
TEXTS = {
    "text": "The quick brown fox.",
    "unicode": "héllo 👩‍👩‍👧 你好 שלום",
    "reasoning": "<think>Let me think.</think>The answer is 4.",
    "call": call("get_weather", city="Zürich"),
    "calls": f"{call('get_weather', city='Paris')}\n{call('get_time')}",
    "text and call": f"Let me look.\n{call('get_weather', city='Paris')}",
    "all": f"<think>I need the weather.</think>\n\nLet me look.\n{call('get_weather', city='Paris')}\n{call('get_time')}",
    "only reasoning": "<think>Let me think.</think>",
    "nothing": "",
}
# Their parsers; the fake tokenizer has no template to choose them by.
FORMATS = {"tool_call_parser": "hermes", "reasoning_parser": "think"}

# The same kinds as pieces.
PIECES = {
    "text": [Content("The quick brown fox.")],
    "reasoning": [Reasoning("Let me think."), Content("The answer is 4.")],
    "call": [ToolCallStart(0, "get_weather", "call_0"), ToolCallArguments(0, '{"city": "Zürich"}')],
    "calls": [
        ToolCallStart(0, "get_weather", "call_0"),
        ToolCallArguments(0, '{"city": "Paris"}'),
        ToolCallStart(1, "get_time", "call_1"),
        ToolCallArguments(1, "{}"),
    ],
    "all": [
        Reasoning("I need the weather."),
        Content("\n\nLet me look."),
        ToolCallStart(0, "get_weather", "call_0"),
        ToolCallArguments(0, '{"city": "Paris"}'),
        ToolCallStart(1, "get_time", "call_1"),
        ToolCallArguments(1, "{}"),
    ],
    "call without arguments": [ToolCallStart(0, "get_time", "call_0")],
    "white space between": [
        Reasoning("\n"),
        Content("\n\n"),
        ToolCallStart(0, "get_time", "call_0"),
        ToolCallArguments(0, "{}"),
    ],
    "only white space": [Content(" \n")],
    "interleaved": [Reasoning("a"), Content("b"), Reasoning("c"), Content("d")],
    "nothing": [],
}


def writes(engine, *texts):
    """Let a fake engine answer each new prompt with the next of these texts; the last one again and again."""
    turns, answers = itertools.chain(texts, itertools.repeat(texts[-1])), {}

    def reply(prompt, position):
        key = tuple(prompt)
        if key not in answers:
            answers[key] = next(turns).encode()
        return answers[key][position] if position < len(answers[key]) else EOS

    engine.reply = reply


def chunked(pieces, size):
    """Return the pieces with their texts cut into chunks of at most `size` characters."""
    cut = []
    for piece in pieces:
        if isinstance(piece, ToolCallStart):
            cut.append(piece)
            continue
        for start in range(0, len(piece.text), size):
            part = piece.text[start : start + size]
            match piece:
                case ToolCallArguments(index, _):
                    cut.append(ToolCallArguments(index, part))
                case _:
                    cut.append(type(piece)(part))
    return cut
