"""Inkling's messages with a kind. Row: output, content, calls."""

import pytest

from tests.frontend.parsing.tools.reading import check_reading, parser_of, read, shown
from tetrad.frontend.parsing.elements.interface import Tool
from tetrad.frontend.parsing.elements.pieces import AssistantTurn
from tetrad.frontend.parsing.forced import RequiredParser
from tetrad.frontend.parsing.reasoning.inkling import INKLING
from tetrad.frontend.parsing.tools.inkling import InklingFormat
from tetrad.frontend.parsing.turn import TurnParser
from tetrad.frontend.parsing.wrapped_answer import WrappedAnswer

MESSAGE, TEXT, CALL, END = "<|message_model|>", "<|content_text|>", "<|content_invoke_tool_json|>", "<|end_message|>"
F = '{"name": "f", "args": {"count": 1}}'
COUNT = ("f", '{"count": 1}')

ROWS = {
    "no marks": ("Hello", "Hello", []),
    "words without marks": ("Hello you\n", "Hello you\n", []),
    "an answer": (f"{TEXT}Hello{END}", "Hello", []),
    "an answer that the prompt has started": (f"Hello{END}", "Hello", []),
    "several messages": (f"{TEXT}a{END}{MESSAGE}{TEXT} b<|content_model_end_sampling|>", "a b", []),
    "a call": (f"{CALL}{F}{END}", "", [COUNT]),
    "a name before the mark": (f"f{CALL}\n{F}{END}{MESSAGE}f{CALL}{F}{END}", "", [COUNT, COUNT]),
    "an answer around a call": (f"{TEXT}a{END}{MESSAGE}f{CALL}{F}{END}{MESSAGE}{TEXT}b{END}", "ab", [COUNT]),
    "no arguments": (f'{CALL}{{"name": "f"}}{END}', "", [("f", "{}")]),
    "no call": (f"{CALL}f(){END}", "f()", []),
    "a call in words": (f"<|content_invoke_tool_text|>f(){END}", "f()", []),
    "thinking without its parser": (f"<|content_thinking|>hm{END}{MESSAGE}{TEXT}a", "hma", []),
    "cut in the name": (f"{TEXT}a{END}{MESSAGE}f", "a", []),
    "cut in a mark": (f"{TEXT}a<|end_", "a<|end_", []),
    "cut in a call": (f'{CALL}{{"name": "f", "args": {{"a": "b', "", [("f", '{"a": "b')]),
}


@pytest.mark.parametrize(("text", "content", "calls"), ROWS.values(), ids=ROWS)
def test_output_means_the_same_in_every_chunking(text, content, calls):
    check_reading("inkling", text, content, calls)


def test_without_tools_there_are_no_calls():
    assert shown(read(parser_of("inkling", []), [f"{CALL}{F}{END}"])) == (F, [])


@pytest.mark.parametrize("thought", [f"<|content_thinking|>hm{END}{MESSAGE}{TEXT}", TEXT, ""])
def test_forced_calls_are_read_behind_the_reasoning_in_every_chunking(thought):
    output = thought + '[{"name": "f", "parameters": {"a": "<|é"}}]' + END

    for place in range(len(output) + 1):
        answer = WrappedAnswer(RequiredParser(), lambda: InklingFormat().parser([Tool("f")]), behind=INKLING.preamble.end)
        parser, turn = TurnParser(INKLING.parser(MESSAGE), None, forced=answer), AssistantTurn()
        for pieces in (parser.feed(output[:place]), parser.feed(output[place:]), parser.finish()):
            turn.add(pieces)

        assert (turn.reasoning, turn.content) == ("hm" if "hm" in thought else "", "")
        assert [(call.name, call.arguments) for call in turn.tool_calls] == [("f", '{"a": "<|é"}')]
