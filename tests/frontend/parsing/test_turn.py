"""TurnParser: the chain of parsers and its pieces."""

import json

import pytest

from tetrad.frontend.parsing.elements.interface import Tool
from tetrad.frontend.parsing.elements.pieces import AssistantTurn, Content, Reasoning, ToolCallArguments, ToolCallStart
from tetrad.frontend.parsing.forced import NamedParser, RequiredParser
from tetrad.frontend.parsing.reasoning.append_think import MINIMAX_M2_APPEND_THINK
from tetrad.frontend.parsing.reasoning.think_formats import QWEN3
from tetrad.frontend.parsing.turn import TurnParser

PROMPT = "<|im_start|>assistant\n"


class ParsesAngles:
    """A tool parser for tests: <name:arguments> is a call; everything is certain at once."""

    def __init__(self):
        self.num_calls = 0

    def feed(self, text):
        pieces = []
        for part in text.replace(">", "<").split("<"):
            name, colon, arguments = part.partition(":")
            if colon:
                pieces += [ToolCallStart(self.num_calls, name), ToolCallArguments(self.num_calls, arguments)]
                self.num_calls += 1
            else:
                pieces.append(Content(part))
        return pieces

    def finish(self):
        return [Content("(end)")]


def turn_of(parser, *texts):
    turn = AssistantTurn()
    for text in texts:
        turn.add(parser.feed(text))
    turn.add(parser.finish())
    return turn


def test_without_parsers_everything_is_content():
    assert turn_of(TurnParser(None, None), "<think>", "a") == AssistantTurn(content="<think>a")


def test_tools_are_looked_for_behind_the_reasoning_only():
    parser = TurnParser(QWEN3.parser(PROMPT), ParsesAngles())

    turn = turn_of(parser, "<think>perhaps <f:1>?</think>", "well <g:2> done")

    assert turn.reasoning == "perhaps <f:1>?"
    assert turn.content == "well  done(end)"
    assert [(call.name, call.arguments) for call in turn.tool_calls] == [("g", "2")]


def test_reasoning_that_is_shown_as_content_holds_no_calls():
    prompt = "]~b]ai\n<think>\n"
    reasoning = MINIMAX_M2_APPEND_THINK.parser(prompt, calls_end_it=False)
    parser = TurnParser(reasoning, None, forced=NamedParser("f"), shows_reasoning=True)

    turn = turn_of(parser, "[hm]</thi", 'nk>\n{"a": 1}')

    assert (turn.reasoning, turn.content) == ("", "<think>[hm]</think>")
    assert [(call.name, call.arguments) for call in turn.tool_calls] == [("f", '{"a": 1}')]


def test_what_reasoning_held_back_reaches_the_tool_parser():
    parser = TurnParser(QWEN3.parser(PROMPT), ParsesAngles())

    assert turn_of(parser, "<thi").content == "thi(end)"


def test_calls_get_ids_of_their_own():
    turn = turn_of(TurnParser(None, ParsesAngles()), "<f:1><g:2>")

    ids = [call.id for call in turn.tool_calls]
    assert all(call_id.startswith("call_") for call_id in ids)
    assert len(set(ids)) == 2


def test_ids_of_the_model_are_kept():
    class Calls:
        def feed(self, text):
            return [ToolCallStart(0, text, "functions.f:0")]

        def finish(self):
            return []

    assert turn_of(TurnParser(None, Calls()), "f").tool_calls[0].id == "functions.f:0"


@pytest.mark.parametrize(("parallel", "names"), [(True, ["f", "g"]), (False, ["f"])])
def test_only_the_first_call_passes_unless_parallel(parallel, names):
    parser = TurnParser(None, ParsesAngles(), parallel=parallel)

    turn = turn_of(parser, "<f:1><g:2>")

    assert [call.name for call in turn.tool_calls] == names
    assert parser.num_tool_calls == len(names)


def test_pieces_without_text_are_not_shown():
    assert TurnParser(QWEN3.parser(PROMPT), None).feed("<think>") == []
    assert TurnParser(QWEN3.parser(PROMPT), None).feed("<think>a") == [Reasoning("a")]
    assert TurnParser(None, None).feed("") == []


def test_forced_calls_are_read_from_what_the_tool_format_leaves():
    class Unwraps:
        def feed(self, text):
            return [Content(text.replace("<final>", ""))]

        def finish(self):
            return []

    text = json.dumps([{"name": "f", "parameters": {"a": 1}}])

    turn = turn_of(TurnParser(None, Unwraps(), forced=RequiredParser()), "<final>" + text)

    assert [(call.name, json.loads(call.arguments)) for call in turn.tool_calls] == [("f", {"a": 1})]
    assert turn.content == ""


def test_a_named_call_begins_behind_the_reasoning():
    parser = TurnParser(QWEN3.parser(PROMPT), None, forced=NamedParser(Tool("f").name))

    turn = turn_of(parser, "<think>hm</think>", '\n{"a": [', "1, 2]}")

    assert (turn.reasoning, turn.content) == ("hm", "")
    assert [(call.name, json.loads(call.arguments)) for call in turn.tool_calls] == [("f", {"a": [1, 2]})]
