"""gpt-oss: the harmony format, in which every message names its channel. The channel `analysis` is reasoning.

All other text is passed on with its marks: the tool format `openai` reads answers and calls from it.
"""

from tetrad.frontend.parsing.elements.interface import Marks, Parser
from tetrad.frontend.parsing.elements.markers import Markers
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting
from tetrad.frontend.parsing.reasoning.writer import ReasoningParser, ReasoningWriter

_START = "<|start|>"
_TURN = "<|start|>assistant"
_RECIPIENT = " to="
_CHANNEL = "<|channel|>"
_ANALYSIS = "<|channel|>analysis<|message|>"
_FINAL = "<|channel|>final<|message|>"
_MESSAGE = "<|message|>"
_END = "<|end|>"


class GptOssFormat:
    """A ReasoningFormat (interface.py)."""

    name = "gpt_oss"
    is_content = False
    keeps_special_tokens = True
    thinking = Marks(_ANALYSIS, _END)
    # Messages on other channels may also precede the answer.
    preamble = Marks(_CHANNEL, _FINAL)

    def __init__(self) -> None:
        self._begins = Markers(_ANALYSIS, _TURN + _RECIPIENT)
        self._header_ends = Markers(_MESSAGE, _START, _END)
        # A message without an end mark ends at any mark that can only follow a message.
        self._ends = Markers(_END, _START, _CHANNEL, "<|call|>", "<|return|>")

    def recognises(self, chat_template: str) -> bool:
        """Return whether the template writes channels."""
        return _CHANNEL in chat_template and "analysis" in chat_template

    def is_over(self, prompt: str) -> bool:
        """Return whether the prompt has started the answer."""
        return _FINAL in _opening(prompt)

    def is_open(self, prompt: str) -> bool:
        """Return whether the prompt has started a message that is not the answer."""
        return _CHANNEL in _opening(prompt) and not self.is_over(prompt)

    def parser(self, prompt: str, *, calls_end_it: bool = True) -> Parser:  # noqa: ARG002 - every message ends itself
        """Return a parser of the output after `prompt`."""
        opening = _opening(prompt)
        begun = opening.rfind(_ANALYSIS) > opening.rfind(_END)

        def read(source: TextSource, writer: ReasoningWriter) -> Waiting[None]:
            if begun:
                yield from self._read_analysis(source, writer)
            elif opening:
                # The header at the end of the prompt belongs to the message that the tool format reads.
                writer.content(opening)
            elif (yield from source.starts_with(_RECIPIENT)):
                yield from self._pass_header(source, writer)
            while mark := (yield from self._begins.pass_text(source, writer.content)):
                if mark == _ANALYSIS:
                    source.take(len(mark))
                    yield from self._read_analysis(source, writer)
                else:
                    writer.content(source.take(len(mark)))
                    yield from self._pass_header(source, writer)

        return ReasoningParser(read)

    def _pass_header(self, source: TextSource, writer: ReasoningWriter) -> Waiting[None]:
        """Pass the header of a call on: its channel may be `analysis`, but its message is not reasoning."""
        if (yield from self._header_ends.pass_text(source, writer.content)) == _MESSAGE:
            writer.content(source.take(len(_MESSAGE)))

    def _read_analysis(self, source: TextSource, writer: ReasoningWriter) -> Waiting[None]:
        """Read the analysis up to its end, and further messages of analysis that follow directly."""
        while True:
            yield from self._ends.pass_text(source, writer.reasoning)
            yield from source.skip(_END)
            if not (yield from source.skip(_TURN + _ANALYSIS)):
                break
            writer.reasoning("\n")
        writer.end_reasoning()


def _opening(prompt: str) -> str:
    """Return the part of the assistant's turn that the prompt contains."""
    return prompt.rpartition(_TURN)[2] if _TURN in prompt else ""


GPT_OSS = GptOssFormat()
