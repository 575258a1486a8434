"""OpenAI's harmony format (gpt-oss): an output consists of messages, each with a header that may name a recipient.

<|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}<|call|> is a call; the text of a message without a
recipient is content. The reasoning parser reads the analysis channel; without such a parser it is content, too.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from tetrad.frontend.parsing.elements.call_ids import OpenAICallIds
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


class OpenAIFormat(OpenAICallIds):
    """A ToolFormat (interface.py)."""

    name = "openai"
    keeps_special_tokens = True
    wraps_content = True

    def recognises(self, chat_template: str) -> bool:
        """Return whether the template writes messages in this format."""
        return _CHANNEL in chat_template and _MESSAGE in chat_template

    def parser(self, tools: Sequence[Tool]) -> Parser:
        """Return a parser of one output. Without tools there are no calls: messages to recipients are content."""
        return ScriptParser(partial(_read, reads_calls=bool(tools)))

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any] | None:  # noqa: ARG002 - no call can be constrained
        """Return None: a structural tag allows no special tokens besides its own, and answers need others."""
        return None


class _Messages:
    """Writes the messages' texts as content, each on a new line.

    Args:
        writer: receives the content.
        reads_calls: whether messages to recipients are calls.
    """

    def __init__(self, writer: PieceWriter, *, reads_calls: bool) -> None:
        self._writer = writer
        self.reads_calls = reads_calls
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


def _read(source: TextSource, writer: PieceWriter, *, reads_calls: bool) -> Waiting[None]:
    messages = _Messages(writer, reads_calls=reads_calls)
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
    """Read a header and, if it belongs to a call, the call. The text of other messages stays unread."""
    complete = yield from _read_header(source)
    header = source.recorded()
    recipient = _RECIPIENT.search(header)
    if not complete:
        # A header that the end of the output cuts off is dropped. Text that only resembles a header is content.
        is_cut = "<|" in header and not (yield from source.more())
        messages.add("" if is_cut else header)
    elif recipient is None or not messages.reads_calls:
        messages.begin()
    else:
        messages.interrupt()
        yield from _read_call(source, writer, recipient[1].removeprefix("functions."))


def _read_header(source: TextSource) -> Waiting[bool]:
    """Read a header up to the text of its message. False: the header is incomplete or malformed."""
    while not (yield from source.skip(_MESSAGE)):
        words = yield from source.read_run(_WORDS)
        marked = False
        for mark in _HEADER_MARKS:
            marked = marked or (yield from source.skip(mark))
        if not words and not marked:
            return False
    return True


def _read_call(source: TextSource, writer: PieceWriter, name: str) -> Waiting[None]:
    """Read the message of a call: JSON, another form of arguments, or nothing if the function has no arguments."""
    writer.start(name)
    yield from skip_space(source)
    if (yield from source.peek()) == "{":
        yield from pass_value(source, writer.arguments)
    elif (yield from source.starts_with_any(_ENDS)) or not (yield from source.more()):  # <|call|> is not in a whole output
        writer.arguments("{}")
    else:
        yield from _MARKERS.pass_text(source, writer.arguments)
