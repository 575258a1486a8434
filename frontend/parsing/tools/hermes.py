"""Hermes: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, once per call. Hermes, Qwen 2.5 and 3, Granite 4.

LongCat, InternLM, Granite 20B, GigaChat, Hunyuan and Jamba: the same JSON between other marks.
"""

from collections.abc import Sequence
from typing import Any

from tetrad.frontend.parsing.elements.call_ids import OpenAICallIds
from tetrad.frontend.parsing.elements.interface import Parser, Tool
from tetrad.frontend.parsing.elements.marked_calls import marked_calls
from tetrad.frontend.parsing.elements.script_parser import ScriptParser
from tetrad.frontend.parsing.elements.strict_calls import strict_call, strict_calls


class HermesFormat(OpenAICallIds):
    """A ToolFormat (interface.py).

    Attributes:
        openings: marks before a call.
        closing: mark after it; empty: none.
        space: white space inside of the marks, which the models write.
        arguments_key: the key that the models write.
    """

    name = "hermes"
    keeps_special_tokens = True  # the marks of Hermes 3 are special tokens
    wraps_content = False
    openings: tuple[str, ...] = ("<tool_call>",)
    closing = "</tool_call>"
    space = "\n"
    arguments_key = "arguments"

    def recognises(self, chat_template: str) -> bool:
        """Return whether the template has a mark; formats with the same mark but other contents are tested before."""
        return any(opening in chat_template for opening in self.openings)

    def parser(self, tools: Sequence[Tool]) -> Parser:  # noqa: ARG002 - any function name is accepted
        """Return a parser of one output."""
        return ScriptParser(marked_calls(*self.openings, closings=(self.closing,) if self.closing else ()))

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any]:
        """Return the structural tag that constrains strict calls to their schemas."""
        begin = f'{self.space}{{"name": "NAME", "{self.arguments_key}": '
        end = f"}}{self.space}{self.closing}" if self.closing else "}"
        tags = [strict_call(tools, opening + begin, end, triggers=[opening]) for opening in self.openings]
        return {key: [each for tag in tags for each in tag[key]] for key in tags[0]}


class LongcatFormat(HermesFormat):
    """The format of LongCat Flash."""

    name = "longcat"
    openings = ("<longcat_tool_call>",)
    closing = "</longcat_tool_call>"


class InternlmFormat(HermesFormat):
    """The format of InternLM 2.5."""

    name = "internlm"
    openings = ("<|action_start|><|plugin|>",)
    closing = "<|action_end|>"
    arguments_key = "parameters"


class GigaChat3Format(HermesFormat):
    """The format of GigaChat 3, whose mark is a role; and of 3.1, whose mark is one token."""

    name = "gigachat3"
    openings = ("function call<|role_sep|>", "<|function_call|>")
    closing = ""


class Granite20bFormat(HermesFormat):
    """The format of Granite 20B Functioncalling."""

    name = "granite-20b-fc"
    openings = ("<function_call>",)
    closing = ""
    space = " "


class HunyuanFormat(HermesFormat):
    """The format of Hunyuan A13B, whose calls are an array."""

    name = "hunyuan_a13b"
    openings = ("<tool_calls>",)
    closing = "</tool_calls>"

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any]:
        """Return the structural tag that constrains strict calls to their schemas."""
        return strict_calls(tools, self.openings[0], self.closing)


class JambaFormat(HunyuanFormat):
    """The format of Jamba 1.5: the same with its other name."""

    name = "jamba"
