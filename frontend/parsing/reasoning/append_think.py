"""Append think: leaves reasoning in the content, with its marks, for clients that send it back to the model with the answer.

It is read as reasoning all the same, so that constraints and calls start behind it. Chosen by name only.
"""

from tetrad.frontend.parsing.elements.interface import Parser
from tetrad.frontend.parsing.elements.json_scanner import skip_space
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting
from tetrad.frontend.parsing.reasoning.think import ThinkFormat
from tetrad.frontend.parsing.reasoning.writer import ReasoningParser, ReasoningWriter


class AppendThinkFormat(ThinkFormat):
    """A ReasoningFormat (interface.py)."""

    is_content = True

    def recognises(self, chat_template: str) -> bool:  # noqa: ARG002 - no template asks for it
        """Return False."""
        return False

    def parser(self, prompt: str, *, calls_end_it: bool = True) -> Parser:
        """Return a parser of the output after `prompt`, which adds a start mark that the prompt contains."""
        if self.is_over(prompt):
            return ReasoningParser(self.answer)
        ends = self.ends(calls_end_it=calls_end_it)

        def read(source: TextSource, writer: ReasoningWriter) -> Waiting[None]:
            source.record()
            yield from skip_space(source)
            started = yield from source.skip(self.thinking.start)
            text = source.recorded()
            if text or (yield from source.more()):
                writer.reasoning(text if started else f"{self.thinking.start}{text}")
            if (yield from ends.pass_text(source, writer.reasoning)) == self.thinking.end:
                writer.reasoning(source.take(len(self.thinking.end)))

        return ReasoningParser(read, layout="")


MINIMAX_M2_APPEND_THINK = AppendThinkFormat(
    "minimax_m2_append_think", always=True, ended_by=("<minimax:tool_call>",), keeps_special_tokens=True
)
