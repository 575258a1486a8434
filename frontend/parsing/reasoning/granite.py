"""Granite 3.2: sentences instead of marks ("Here is my thought process:"), and only if the prompt requests them."""

from tetrad.frontend.parsing.elements.interface import Marks, Parser
from tetrad.frontend.parsing.elements.json_scanner import skip_space
from tetrad.frontend.parsing.elements.markers import Markers
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting
from tetrad.frontend.parsing.reasoning.writer import ReasoningParser, ReasoningWriter

_STARTS = ("Here is my thought process:", "Here's my thought process:")
_ENDS = ("Here is my response:", "Here's my response:")


class GraniteFormat:
    """A ReasoningFormat (interface.py)."""

    name = "granite"
    is_content = False
    keeps_special_tokens = False
    thinking = preamble = Marks(_STARTS[0], _ENDS[0])

    def __init__(self) -> None:
        self._ends = Markers(*_ENDS)

    def recognises(self, chat_template: str) -> bool:
        """Return whether the template can request the sentences."""
        return _STARTS[0] in chat_template

    def is_over(self, prompt: str) -> bool:
        """Return whether the prompt does not request reasoning; it does with `thinking: true` in the template's variables."""
        return _STARTS[0] not in prompt

    def is_open(self, prompt: str) -> bool:  # noqa: ARG002 - no template writes the sentence for the model
        """Return False: the model writes the first sentence itself."""
        return False

    def parser(self, prompt: str, *, calls_end_it: bool = True) -> Parser:  # noqa: ARG002 - the output shows it
        """Return a parser of the output; a model may reason even without a request."""
        return ReasoningParser(self._read, layout=" \n")

    def _read(self, source: TextSource, writer: ReasoningWriter) -> Waiting[None]:
        source.record()
        yield from skip_space(source)
        started = (yield from source.skip(_STARTS[0])) or (yield from source.skip(_STARTS[1]))
        space = source.recorded()
        if not started:
            writer.content(space)
            return
        end = yield from self._ends.pass_text(source, writer.reasoning)
        source.take(len(end))
        writer.end_reasoning()


GRANITE = GraniteFormat()
