"""Reasoning tokens: the same number for every division of an output into chunks."""

from tetrad.frontend.chat.reasoning_tokens import ReasoningTokens
from tetrad.frontend.parsing.reasoning.think_formats import THINK
from tetrad.frontend.parsing.turn import TurnParser
from tetrad.frontend.request.outputs import CompletionOutput

START, END = 8, 9


def count(*chunks):
    """Return the number of reasoning tokens of an output that arrives as (text, token ids)."""
    tokens, parser = ReasoningTokens([END]), TurnParser(THINK.parser("<|im_start|>assistant\n"), None)
    found = []
    for number, (text, ids) in enumerate(chunks, start=1):
        reason = "stop" if number == len(chunks) else None
        pieces = parser.feed(text) + (parser.finish() if reason else [])
        found.append(tokens.count(CompletionOutput(0, text, ids, finish_reason=reason), pieces))
    return sum(found)


def test_tokens_up_to_the_end_mark_count():
    assert count(("<think>", [START]), ("ok", [1, 2]), ("</think>", [END]), ("Answer", [3])) == 4


def test_tokens_that_arrive_before_their_text_count():
    """With stop strings, the last characters are held back, and their tokens are not."""
    assert count(("<think>", [START, 1, 2, END]), ("ok</think>An", [3]), ("swer", [])) == 4


def test_an_output_that_ends_in_its_reasoning_is_all_reasoning():
    assert count(("<think>", [START]), ("ok", [1, 2])) == 3


def test_empty_reasoning_counts_nothing():
    assert count(("<think>", [START]), ("</think>", [END]), ("Answer", [3])) == 0
