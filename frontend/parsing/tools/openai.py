"""OpenAI's harmony (gpt-oss): an output is messages, each with a header that names its recipient.

<|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}<|call|> is a call; a message without a recipient is
content, without its header. The analysis channel belongs to the reasoning parser; without one it is content like the others.
"""

import re
from collections.abc import Sequence
from typing import Any

from tetrad.frontend.parsing.elements.interface import Parser, Tool
from tetrad.frontend.parsing.elements.json_scanner import pass_value, skip_space
from tetrad.frontend.parsing.elements.markers import Markers
from tetrad.frontend.parsing.elements.piece_writer import PieceWriter
from tetrad.frontend.parsing.elements.script_parser import ScriptParser
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting

_START = "<|start|>"
_CHANNEL = "<|channel|>"
_CONSTRAIN = "<|constrain|>"
_MESSAGE = "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_MARKERS = Markers(_START, _CHANNEL, _MESSAGE, *_ENDS)
_RECIPIENT = re.compile(r"to=([^\s<]+)")
# The parts of a header between its marks.
_WORDS = re.compile(r"[\w .:=/\-]+")
_HEADER_MARKS = (_START, _CHANNEL, _CONSTRAIN)


class OpenAIFormat:
    """A ToolFormat (interface.py)."""

    name = "openai"
    keeps_special_tokens = True
    wraps_content = True

    def recognises(self, chat_template: str) -> bool:
        """Whether the template writes messages so."""
        return _CHANNEL in chat_template and _MESSAGE in chat_template

    def parser(self, tools: Sequence[Tool]) -> Parser:  # noqa: ARG002 - calls name themselves
        """Return a parser of one output."""
        return ScriptParser(_read)

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any] | None:  # noqa: ARG002 - none can be held
        """Return None: a tag allows no special tokens but its own, and answers are made of others."""
        return None


class _Messages:
    """Content, a line for each message."""

    def __init__(self, writer: PieceWriter) -> None:
        self._writer = writer
        self._separator = ""
        self._is_first = True

    def begin(self) -> None:
        self._separator = "" if self._is_first else "\n"

    def add(self, text: str) -> None:
        if text:
            self._writer.content(self._separator + text)
            self._separator = ""
            self._is_first = False

    def interrupt(self) -> None:
        self._separator = ""
        self._is_first = True


def _read(source: TextSource, writer: PieceWriter) -> Waiting[None]:
    messages = _Messages(writer)
    source.record()
    yield from skip_space(source)
    if (yield from source.starts_with("to=")):  # the prompt has opened the header
        yield from _read_message(source, writer, messages)
    else:
        messages.add(source.recorded())
    while marker := (yield from _MARKERS.pass_text(source, messages.add)):
        if marker in _ENDS:
            yield from source.skip(marker)
        else:
            source.record()
            yield from _read_message(source, writer, messages)


def _read_message(source: TextSource, writer: PieceWriter, messages: _Messages) -> Waiting[None]:
    """Read a header and, if it is a call's, the call. Content is left to be read."""
    complete = yield from _read_header(source)
    header = source.recorded()
    recipient = _RECIPIENT.search(header)
    if not complete:
        # A header that is cut off says nothing yet. What only looked like one is content.
        is_cut = "<|" in header and not (yield from source.more())
        messages.add("" if is_cut else header)
    elif recipient is None:
        messages.begin()
    else:
        messages.interrupt()
        yield from _read_call(source, writer, recipient[1].removeprefix("functions."))


def _read_header(source: TextSource) -> Waiting[bool]:
    """Read a header up to the text of its message. False: it does not get there."""
    while not (yield from source.skip(_MESSAGE)):
        words = yield from source.read_run(_WORDS)
        marked = False
        for mark in _HEADER_MARKS:
            marked = marked or (yield from source.skip(mark))
        if not words and not marked:
            return False
    return True


def _read_call(source: TextSource, writer: PieceWriter, name: str) -> Waiting[None]:
    """Read the message of a call: JSON, or whatever the function takes."""
    writer.start(name)
    yield from skip_space(source)
    if (yield from source.peek()) == "{":
        yield from pass_value(source, writer.arguments)
    else:
        yield from _MARKERS.pass_text(source, writer.arguments)
