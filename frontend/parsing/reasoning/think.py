"""Think: reasoning between <think> and </think>, the form of most open models. The formats of families are at the end.

The prompt may open the reasoning, or close it at once to switch it off. Only the text after the last turn mark decides, so that
a user's text has no influence.
"""

from tetrad.frontend.parsing.elements.interface import Marks, Parser
from tetrad.frontend.parsing.elements.json_scanner import skip_space
from tetrad.frontend.parsing.elements.markers import Markers
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting
from tetrad.frontend.parsing.reasoning.writer import ReasoningParser, ReasoningWriter

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
)


class ThinkFormat:
    """A ReasoningFormat (interface.py).

    Args:
        name: name of the format.
        template_marks: a template with all of these texts uses the format.
        always: whether the model reasons even if neither the prompt nor the output has a start mark.
        ended_by: further marks that end the reasoning, and belong to the following text.
        keeps_special_tokens: whether the marks are special tokens of the model's tokenizer.
        marks: the marks of the reasoning.
    """

    def __init__(
        self,
        name: str,
        *template_marks: str,
        always: bool = False,
        ended_by: tuple[str, ...] = (),
        keeps_special_tokens: bool = False,
        marks: Marks = _MARKS,
    ) -> None:
        self.name = name
        self.thinking = self.preamble = marks
        self.keeps_special_tokens = keeps_special_tokens
        self._template_marks = (*template_marks, marks.end)
        self._always = always
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
            return ReasoningParser(_nothing)
        begun = self.is_open(prompt)
        ends = self._ends if calls_end_it else self._end

        def read(source: TextSource, writer: ReasoningWriter) -> Waiting[None]:
            source.record()
            yield from skip_space(source)
            started = yield from source.skip(self.thinking.start)
            space = source.recorded()
            if not started:
                # Without a start mark, the white space belongs to the text.
                (writer.reasoning if begun else writer.content)(space)
            if started or begun:
                yield from ends.pass_text(source, writer.reasoning)
                yield from source.skip(self.thinking.end)
                writer.end_reasoning()

        return ReasoningParser(read)

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


def _nothing(source: TextSource, writer: ReasoningWriter) -> Waiting[None]:  # noqa: ARG001 - a script
    yield from ()


DEEPSEEK_R1 = ThinkFormat("deepseek_r1", "<｜Assistant｜>", always=True, ended_by=("<｜tool▁calls▁begin｜>",))
"""DeepSeek R1, its distilled models, and V3.1: the model always reasons; <think> is often in the prompt or missing."""
GEMMA4 = ThinkFormat(
    "gemma4",
    "<|turn>",
    ended_by=("<|tool_call>",),
    keeps_special_tokens=True,
    marks=Marks("<|channel>thought\n", "<channel|>"),
)
"""Gemma 4: a channel; `enable_thinking: true` asks for it, and an empty one may come without."""
GLM45 = ThinkFormat("glm45", "<|assistant|>", ended_by=("<tool_call>",), keeps_special_tokens=True)
"""GLM 4.5 and later: <think> after the role; `enable_thinking: false` makes the prompt close it."""
KIMI_K2 = ThinkFormat("kimi_k2", "<|im_assistant|>", ended_by=("<|tool_calls_section_begin|>",), keeps_special_tokens=True)
"""Kimi K2 Thinking: <think>; a tool call may end the reasoning without </think>."""
MINIMAX_M2 = ThinkFormat("minimax_m2", "]~b]ai", always=True, ended_by=("<minimax:tool_call>",), keeps_special_tokens=True)
"""MiniMax M2: the model always reasons; the prompt opens <think>."""
MISTRAL = ThinkFormat(
    "mistral", "[/INST]", ended_by=("[TOOL_CALLS]",), keeps_special_tokens=True, marks=Marks("[THINK]", "[/THINK]")
)
"""Magistral and Ministral: other marks, which are special tokens; a system message asks the model to reason."""
QWEN3 = ThinkFormat("qwen3", "<|im_start|>", ended_by=("<tool_call>",))
"""Qwen3 and QwQ: the model or the prompt opens <think>; `enable_thinking: false` makes the prompt close it."""
SEED_OSS = ThinkFormat(
    "seed_oss",
    "<seed:bos>",
    ended_by=("<seed:tool_call>",),
    keeps_special_tokens=True,
    marks=Marks("<seed:think>", "</seed:think>"),
)
"""Seed-OSS: other marks; `thinking_budget: 0` makes the prompt open the reasoning, and the model close it at once."""
STEP3 = ThinkFormat("step3", "<steptml:", always=True, ended_by=("<｜tool_calls_begin｜>",), keeps_special_tokens=True)
"""Step 3: the model always reasons."""
THINK = ThinkFormat("think", keeps_special_tokens=True)
"""The format of any other model whose template has the marks."""
