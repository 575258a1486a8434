"""The tokens that one plan may still use: of all requests, of prompts, and of one request."""

import pytest

from tetrad.engine_core_svc.core.message_sizes import DEFAULT_LIMITS
from tetrad.engine_core_svc.scheduler.budget import MessageBudget, StepBudget
from tetrad.engine_core_svc.scheduler.fan_out_throttle import NO_SHARE


def budget(num_tokens=20, *, prompt_tokens=12, chunk=8):
    messages = MessageBudget(DEFAULT_LIMITS, 4, 1, shares_params=True)
    return StepBudget(num_tokens, prompt_tokens=prompt_tokens, chunk=chunk, messages=messages, share=NO_SHARE)


def test_a_prompt_gets_a_chunk_of_the_tokens_for_prompts():
    step = budget()

    assert [step.take(9), step.take(9), step.take(9)] == [8, 4, 0]
    assert (step.num_tokens, step.num_prompt_tokens) == (8, 12)


def test_a_single_token_is_none_of_those_for_prompts():
    step = budget(3, prompt_tokens=2)

    assert [step.take(2), step.take(1), step.take(1)] == [2, 1, 0]
    assert (step.num_tokens, step.num_prompt_tokens) == (0, 2)


@pytest.mark.parametrize("num_wanted", [1, 2, 9])
def test_tokens_that_are_given_back_can_be_taken_again(num_wanted):
    step = budget()

    num_taken = step.take(num_wanted)
    step.give_back(num_wanted, num_taken)

    assert (step.num_tokens, step.num_prompt_tokens, step.take(num_wanted)) == (20, 0, num_taken)
