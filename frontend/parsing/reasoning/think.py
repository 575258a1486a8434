"""Think: reasoning between <think> and </think>, the form of most open models. think_formats.py lists the formats of families.

The prompt may open the reasoning, or close it at once to switch it off. Only the text after the last turn mark decides, so that
a user's text has no influence.
"""

from tetrad.frontend.parsing.elements.interface import Marks, Parser
from tetrad.frontend.parsing.elements.json_scanner import skip_space
from tetrad.frontend.parsing.elements.markers import Markers
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting
from tetrad.frontend.parsing.reasoning.answer import pass_answer
from tetrad.frontend.parsing.reasoning.citations import CitedText, PlainText
from tetrad.frontend.parsing.reasoning.writer import ReasoningParser, ReasoningScript, ReasoningWriter

_MARKS = Marks("<think>", "</think>")
# Marks of templates at the start of the assistant's turn.
_TURN_MARKS = (
    "<|im_start|>assistant",
    "<｜Assistant｜>",
    "<|assistant|>",
    "<|im_assistant|>assistant<|im_middle|>",
    "<|start_header_id|>assistant<|end_header_id|>",
    "<|start_of_role|>assistant<|end_of_role|>",
    "<start_of_turn>model",
    "[/INST]",
    "<seed:bos>assistant",
    "<|turn>model",
    "]~b]ai",
    "<|CHATBOT_TOKEN|>",
    "<|assistant_start|>",
    "<|im:start|>assistant<|im:content|>",
    '<|open|>message role="assistant"<|sep|>',
)


class ThinkFormat:
    """A ReasoningFormat (interface.py).

    Attributes:
        answer: reads the text behind the reasoning.

    Args:
        name: name of the format.
        template_marks: a template with all of these texts uses the format.
        always: whether the model reasons even if neither the prompt nor the output has a start mark.
        ended_by: further marks that end the reasoning, and belong to the following text.
        keeps_special_tokens: whether the marks are special tokens of the model's tokenizer.
        marks: the marks of the reasoning.
        answer: reads the text behind the reasoning.
        text: passes the text of the reasoning on.
    """

    is_content = False

    def __init__(
        self,
        name: str,
        *template_marks: str,
        always: bool = False,
        ended_by: tuple[str, ...] = (),
        keeps_special_tokens: bool = False,
        marks: Marks = _MARKS,
        answer: ReasoningScript = pass_answer,
        text: type[PlainText | CitedText] = PlainText,
    ) -> None:
        self.name = name
        self.thinking = self.preamble = marks
        self.keeps_special_tokens = keeps_special_tokens
        self._template_marks = (*template_marks, marks.end)
        self._always = always
        self.answer = answer
        self._text = text
        self._end = Markers(marks.end)
        self._ends = Markers(marks.end, *ended_by)

    def recognises(self, chat_template: str) -> bool:
        """Return whether a model with this template reasons in this format."""
        return all(mark in chat_template for mark in self._template_marks)

    def is_over(self, prompt: str) -> bool:
        """Return whether the prompt has closed the reasoning, or has started the answer without reasoning."""
        return not self._opens(prompt) and bool(self._opening(prompt).strip())

    def is_open(self, prompt: str) -> bool:
        """Return whether the prompt has opened the reasoning, or the model reasons without a start mark."""
        return not self.is_over(prompt) and (self._always or self._opens(prompt))

    def parser(self, prompt: str, *, calls_end_it: bool = True) -> Parser:
        """Return a parser of the output after `prompt`; see ReasoningFormat."""
        if self.is_over(prompt):
            return ReasoningParser(self.answer)
        begun = self.is_open(prompt)
        ends = self.ends(calls_end_it=calls_end_it)

        def read(source: TextSource, writer: ReasoningWriter) -> Waiting[None]:
            source.record()
            yield from skip_space(source)
            started = yield from source.skip(self.thinking.start)
            # An end mark alone belongs to no text: the model has taken the prompt for one that opens the reasoning.
            ended = not started and not begun and (yield from source.skip(self.thinking.end))
            space = source.recorded()
            if not started and not ended:
                # Without a mark, the white space belongs to the text.
                source.put_back(space)
            if started or begun:
                text = self._text(writer.reasoning)
                yield from ends.pass_text(source, text.add)
                text.end()
                yield from source.skip(self.thinking.end)
            if started or begun or ended:
                writer.end_reasoning()
            yield from self.answer(source, writer)

        return ReasoningParser(read)

    def ends(self, *, calls_end_it: bool) -> Markers:
        """Return the marks that end the reasoning; see ReasoningFormat.parser."""
        return self._ends if calls_end_it else self._end

    def _opens(self, prompt: str) -> bool:
        opening = self._opening(prompt)
        return opening.rfind(self.thinking.start) > opening.rfind(self.thinking.end)

    def _opening(self, prompt: str) -> str:
        """Return the part of the assistant's turn that the prompt contains."""
        behind = max(found + len(mark) if (found := prompt.rfind(mark)) >= 0 else -1 for mark in _TURN_MARKS)
        if behind >= 0:
            return prompt[behind:]
        # A template of another family: only a mark at the very end of the prompt surely belongs to the assistant's turn.
        end = prompt.rstrip()
        return next((mark for mark in (self.thinking.start, self.thinking.end) if end.endswith(mark)), "")
