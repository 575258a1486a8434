"""Whole chains of parsers: every division of an output into chunks gives the same reasoning, content and calls."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.frontend.parsing.tools.reading import TOOLS
from tests.frontend.parsing.tools.test_laws import OUTPUTS, WORDS
from tetrad.frontend.parsing.elements.pieces import AssistantTurn
from tetrad.frontend.parsing.forced import NamedParser, RequiredParser
from tetrad.frontend.parsing.registry import REASONING_FORMATS, TOOL_FORMATS, choose_format
from tetrad.frontend.parsing.turn import TurnParser
from tetrad.frontend.parsing.wrapped_answer import WrappedAnswer

# The formats of one model: of calls, of reasoning.
PAIRS = [
    ("hermes", "qwen3"),
    ("qwen3_coder", "qwen3"),
    ("hermes", "ernie45"),
    ("openai", "gpt_oss"),
    ("inkling", "inkling"),
    ("pythonic", "granite"),
    ("minimax_m2", "minimax_m2_append_think"),
    ("glm45", "glm45"),
    ("deepseek_v31", "deepseek_r1"),
    *((name, name) for name in ("apertus", "cohere_command3", "gemma4", "hunyuan_a13b", "hy_v3", "kimi_k2", "kimi_k3")),
    *((name, name) for name in ("minimax_m2", "minimax_m3", "mistral", "seed_oss", "solar_open2", "step3")),
]
FORCED = {
    "required": (RequiredParser, '[{"name": "f", "parameters": {"text": "<é"}}, {"name": "g", "parameters": {}}]'),
    "named": (lambda: NamedParser("f"), '{"text": "</think>", "count": 1}'),
}


def chain(pair, choice, *, parallel):
    tools, reasoning = choose_format(TOOL_FORMATS, pair[0], ""), choose_format(REASONING_FORMATS, pair[1], "")
    forced = FORCED[choice][0]() if choice in FORCED else None
    if forced is not None and tools.wraps_content:
        forced = WrappedAnswer(forced, lambda: tools.parser(TOOLS), behind=reasoning.preamble.end)
    return TurnParser(
        reasoning.parser("", calls_end_it=forced is None),
        tools.parser(TOOLS) if forced is None else None,
        forced=forced,
        shows_reasoning=reasoning.is_content,
        parallel=parallel,
        new_id=lambda name, index: f"{name}-{index}",
    )


def read(parser, chunks):
    turn = AssistantTurn()
    for chunk in chunks:
        turn.add(parser.feed(chunk))
    turn.add(parser.finish())
    return turn, parser.num_tool_calls, parser.has_incomplete_call


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@settings(max_examples=60)
@given(
    choice=st.sampled_from(["auto", *FORCED]),
    parallel=st.booleans(),
    thought=st.sampled_from(["", "well", "\nwell\n\n", "a <tool_call> b"]),
    marked=st.tuples(st.booleans(), st.booleans()),
    garbage=st.lists(st.sampled_from(WORDS), max_size=3),
    end=st.integers(0, 500),
    cuts=st.lists(st.integers(0, 500), max_size=8),
)
def test_every_division_of_an_output_gives_the_same_turn(pair, choice, parallel, thought, marked, garbage, end, cuts):
    marks = choose_format(REASONING_FORMATS, pair[1], "").thinking
    output = (marks.start if marked[0] else "") + thought + (marks.end if marked[1] else "") + "".join(garbage)
    output = (output + (FORCED[choice][1] if choice in FORCED else OUTPUTS[pair[0]]))[:end]
    places = sorted(min(cut, len(output)) for cut in cuts)

    whole = read(chain(pair, choice, parallel=parallel), [output])

    chunks = [output[start:stop] for start, stop in zip([0, *places], [*places, None], strict=True)]
    assert read(chain(pair, choice, parallel=parallel), chunks) == whole
    assert read(chain(pair, choice, parallel=parallel), output) == whole
    assert parallel or whole[1] <= 1
