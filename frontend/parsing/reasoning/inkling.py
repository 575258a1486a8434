"""Inkling: every message has a kind. Messages of the kind `thinking` are reasoning.

All other text is passed on with its marks: the tool format `inkling` reads answers and calls from it.
"""

from tetrad.frontend.parsing.elements.interface import Marks, Parser
from tetrad.frontend.parsing.elements.markers import Markers
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting
from tetrad.frontend.parsing.reasoning.writer import ReasoningParser, ReasoningWriter

_MESSAGE = "<|message_model|>"
_THINKING = "<|content_thinking|>"
_TEXT = "<|content_text|>"
_CALL = "<|content_invoke_tool_json|>"
_ENDS = ("<|end_message|>", "<|content_model_end_sampling|>")


class InklingFormat:
    """A ReasoningFormat (interface.py)."""

    name = "inkling"
    is_content = False
    keeps_special_tokens = True
    thinking = Marks(_THINKING, _ENDS[0])
    preamble = Marks(_THINKING, _TEXT)

    def __init__(self) -> None:
        self._begins = Markers(_THINKING)
        # A message without an end mark ends at any mark that can only follow a message.
        self._ends = Markers(*_ENDS, _MESSAGE, _TEXT, _CALL)

    def recognises(self, chat_template: str) -> bool:
        """Return whether the template writes such messages."""
        return _MESSAGE in chat_template and _THINKING in chat_template

    def is_over(self, prompt: str) -> bool:
        """Return whether the prompt has started the answer."""
        return _TEXT in _opening(prompt)

    def is_open(self, prompt: str) -> bool:
        """Return whether the prompt has started the reasoning."""
        return _THINKING in _opening(prompt) and not self.is_over(prompt)

    def parser(self, prompt: str, *, calls_end_it: bool = True) -> Parser:  # noqa: ARG002 - every message ends itself
        """Return a parser of the output after `prompt`."""
        opening = _opening(prompt)
        begun = opening.rfind(_THINKING) > max(opening.rfind(end) for end in _ENDS)

        def read(source: TextSource, writer: ReasoningWriter) -> Waiting[None]:
            if begun:
                yield from self._read_thinking(source, writer)
            while (yield from self._begins.pass_text(source, writer.content)):
                source.take(len(_THINKING))
                yield from self._read_thinking(source, writer)

        return ReasoningParser(read)

    def _read_thinking(self, source: TextSource, writer: ReasoningWriter) -> Waiting[None]:
        """Read a message up to its end, and further messages of this kind that follow directly."""
        while True:
            end = yield from self._ends.pass_text(source, writer.reasoning)
            if end in _ENDS:
                source.take(len(end))
            if not (yield from source.skip(_MESSAGE + _THINKING)):
                break
            writer.reasoning("\n")
        writer.end_reasoning()


def _opening(prompt: str) -> str:
    """Return the part of the assistant's turn that the prompt contains."""
    return prompt.rpartition(_MESSAGE)[2] if _MESSAGE in prompt else ""


INKLING = InklingFormat()
