"""Inkling: an output consists of messages, each with a kind: <|message_model|><|content_text|>...<|end_message|> is an answer.

<|content_invoke_tool_json|>{"name": ..., "args": {...}}<|end_message|> is a call; a name may be before the mark of the kind.
The reasoning parser reads the messages of the kind `thinking`; without such a parser they are content, too.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from tetrad.frontend.parsing.elements.call_ids import OpenAICallIds
from tetrad.frontend.parsing.elements.interface import Parser, Tool
from tetrad.frontend.parsing.elements.json_calls import CallKeys, read_call
from tetrad.frontend.parsing.elements.json_scanner import skip_space
from tetrad.frontend.parsing.elements.markers import Markers
from tetrad.frontend.parsing.elements.piece_writer import PieceWriter
from tetrad.frontend.parsing.elements.script_parser import ScriptParser
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting

_MESSAGE = "<|message_model|>"
_CALL = "<|content_invoke_tool_json|>"
_KINDS = (_CALL, "<|content_text|>", "<|content_thinking|>", "<|content_invoke_tool_text|>", "<|content_tool_error|>")
_ENDS = ("<|end_message|>", "<|content_model_end_sampling|>")
_MARKERS = Markers(_MESSAGE, *_KINDS, *_ENDS)
_NAME = re.compile(r"[\w.\-]+")
_KEYS = CallKeys(arguments=("args", "arguments", "parameters"))


class InklingFormat(OpenAICallIds):
    """A ToolFormat (interface.py)."""

    name = "inkling"
    keeps_special_tokens = True
    wraps_content = True

    def recognises(self, chat_template: str) -> bool:
        """Return whether the template writes messages in this format."""
        return _CALL in chat_template or _MESSAGE in chat_template

    def parser(self, tools: Sequence[Tool]) -> Parser:
        """Return a parser of one output. Without tools there are no calls: their messages are content."""
        return ScriptParser(partial(_read, reads_calls=bool(tools)))

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any] | None:  # noqa: ARG002 - no call can be constrained
        """Return None: a structural tag allows no special tokens besides its own, and answers need others."""
        return None


def _read(source: TextSource, writer: PieceWriter, *, reads_calls: bool) -> Waiting[None]:
    # The prompt ends with the mark of the first message.
    yield from _skip_name(source, writer, is_first=True)
    while mark := (yield from _MARKERS.pass_text(source, writer.content)):
        source.take(len(mark))
        if mark == _MESSAGE:
            yield from _skip_name(source, writer, is_first=False)
        elif mark == _CALL and reads_calls:
            source.record()
            yield from skip_space(source)
            announced = yield from read_call(source, writer, keys=_KEYS)
            text = source.recorded()
            writer.content("" if announced else text)


def _skip_name(source: TextSource, writer: PieceWriter, *, is_first: bool) -> Waiting[None]:
    """Read the name before the mark of a kind. Other text is content."""
    source.record()
    yield from source.read_run(_NAME)
    is_name = yield from source.starts_with_any((_MESSAGE, *_KINDS))
    text = source.recorded()
    # A name that the end of the output cuts off is dropped.
    if not is_name and (is_first or (yield from source.more())):
        writer.content(text)
