"""Forced calls of a model that wraps its output: the part that is read as the call, in every chunking."""

import json

import pytest

from tetrad.frontend.parsing.elements.interface import Tool
from tetrad.frontend.parsing.elements.pieces import AssistantTurn
from tetrad.frontend.parsing.forced import NamedParser, RequiredParser
from tetrad.frontend.parsing.reasoning.gpt_oss import GPT_OSS
from tetrad.frontend.parsing.tools.openai import OpenAIFormat
from tetrad.frontend.parsing.turn import TurnParser
from tetrad.frontend.parsing.wrapped_answer import WrappedAnswer

PROMPT = "<|start|>user<|message|>hi<|end|><|start|>assistant"
ANALYSIS, FINAL = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant", "<|channel|>final<|message|>"
WORDS = "<|channel|>commentary<|message|>I add.<|end|><|start|>assistant"
OWN_CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "no"}<|call|><|start|>assistant'
CALL = '[{"name": "f", "parameters": {"a": "<|é😀"}}]'
ARGUMENTS = {"a": "<|é😀"}

# output, reasoning, content, arguments of the calls
REQUIRED = {
    "answered at once": (FINAL + CALL, "", "", [ARGUMENTS]),
    "reasoning": (ANALYSIS + FINAL + CALL, "hm", "", [ARGUMENTS]),
    "reasoning without an end": ("<|channel|>analysis<|message|>hm" + FINAL + CALL, "hm", "", [ARGUMENTS]),
    "words": (WORDS + FINAL + CALL, "", "I add.", [ARGUMENTS]),
    "reasoning and words": (ANALYSIS + WORDS + FINAL + CALL, "hm", "I add.", [ARGUMENTS]),
    "a call that nothing constrained": (ANALYSIS + OWN_CALL + FINAL + CALL, "hm", "", [ARGUMENTS]),
    "nothing but such a call": (ANALYSIS + OWN_CALL, "hm", "", []),
    "not wrapped": (CALL, "", "", [ARGUMENTS]),
    "not wrapped, behind space": ("\n " + CALL, "", "", [ARGUMENTS]),
    "closed": (FINAL + CALL + "<|return|>", "", "", [ARGUMENTS]),
    "two calls": (FINAL + CALL[:-1] + "," + CALL[1:], "", "", [ARGUMENTS, ARGUMENTS]),
    "cut off in the reasoning": (ANALYSIS.removesuffix("<|end|><|start|>assistant"), "hm", "", []),
    "cut off in the header": (ANALYSIS + "<|channel|>fin", "hm", "", []),
    "nothing": ("", "", "", []),
}


def turn_of(forced, chunks, prompt=PROMPT):
    answer = WrappedAnswer(forced, lambda: OpenAIFormat().parser([Tool("f")]), behind=GPT_OSS.preamble.end)
    parser, turn = TurnParser(GPT_OSS.parser(prompt, calls_end_it=False), None, forced=answer), AssistantTurn()
    for chunk in chunks:
        turn.add(parser.feed(chunk))
    turn.add(parser.finish())
    return turn.reasoning, turn.content, [(call.name, json.loads(call.arguments)) for call in turn.tool_calls]


@pytest.mark.parametrize(("output", "reasoning", "content", "calls"), REQUIRED.values(), ids=REQUIRED)
def test_required_calls_split_in_every_place(output, reasoning, content, calls):
    expected = (reasoning, content, [("f", arguments) for arguments in calls])

    for place in range(len(output) + 1):
        assert turn_of(RequiredParser(), [output[:place], output[place:]]) == expected, place
    assert turn_of(RequiredParser(), output) == expected


@pytest.mark.parametrize("before", ["", FINAL, ANALYSIS + FINAL, ANALYSIS + WORDS + OWN_CALL + FINAL])
def test_named_calls_get_the_answer_alone(before):
    output = before + json.dumps(ARGUMENTS)

    whole, by_character = turn_of(NamedParser("f"), [output]), turn_of(NamedParser("f"), output)

    assert whole == by_character
    assert whole[2] == [("f", ARGUMENTS)]


def test_an_answer_that_the_prompt_has_begun_is_read():
    assert turn_of(RequiredParser(), [CALL], PROMPT + FINAL) == ("", "", [("f", ARGUMENTS)])
