"""The bytes that one plan may still use, to the byte: 1,000 for descriptions, 300 for parameters, 100 for masks and so on."""

import pytest

from tetrad.engine_core_svc.core.message_sizes import MessageLimits, MessageSizes
from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.scheduler.budget import MessageBudget

LIMITS = MessageLimits(
    described_bytes=1000, params_bytes=300, mask_bytes=100, logprob_bytes=50, position_bytes=50, prompt_logprob_bytes=80
)  # fmt: skip
TOKENS_BYTES = 5 * 4 + 20 * (4 // 4 + 1)
"""Of the description of 4 tokens in blocks of 4."""


def budget(*described, shares=True, groups=1):
    """Return the budget of a plan that describes these requests."""
    found = MessageBudget(LIMITS, 4, groups, shares_params=shares)
    for request in described:
        found.describe(request)
    return found


def asking(num_prompt_tokens=4, num_computed=0, **sizes):
    tokens = list(range(num_prompt_tokens))
    request = Request(1, "r", tokens, num_prompt_tokens, 99, sizes=MessageSizes(**sizes))
    request.num_computed_tokens = num_computed
    return request


def test_the_first_request_of_a_plan_is_described_however_large_it_is():
    assert budget().can_describe(asking(other_bytes=9999, params_bytes=9999))


@pytest.mark.parametrize(("groups", "of_tokens"), [(1, TOKENS_BYTES), (3, 5 * 4 + 60 * 2)])
def test_descriptions_fill_their_share_to_the_byte(groups, of_tokens):
    first = asking(other_bytes=200, params_bytes=40, params_id=1)
    room = 1000 - (200 + 40 + of_tokens) - of_tokens - 30

    fits = [
        budget(first, groups=groups).can_describe(asking(other_bytes=room + more, params_bytes=30, params_id=2))
        for more in (0, 1)
    ]

    assert fits == [True, False]


def test_parameters_fill_their_share_to_the_byte():
    first = asking(params_bytes=200, params_id=1)

    assert [budget(first).can_describe(asking(params_bytes=size, params_id=2)) for size in (100, 101)] == [True, False]


def test_large_parameters_stand_alone_among_requests_without_any():
    assert budget(asking(params_id=1)).can_describe(asking(params_bytes=301, params_id=2))
    assert budget(asking(params_bytes=301, params_id=1)).can_describe(asking(params_id=2))


@pytest.mark.parametrize(("shares", "fits"), [(True, True), (False, False)])
def test_parameters_that_are_in_the_plan_cost_nothing_again(shares, fits):
    first = asking(params_bytes=200, params_id=1)

    assert budget(first, shares=shares).can_describe(asking(params_bytes=200, params_id=1)) is fits


def test_parameters_that_are_in_the_plan_take_no_byte_of_another_description():
    first = asking(params_bytes=200, params_id=1)
    room = 1000 - (200 + TOKENS_BYTES) - TOKENS_BYTES

    fits = [budget(first).can_describe(asking(other_bytes=size, params_bytes=200, params_id=1)) for size in (room, room + 1)]

    assert fits == [True, False]


def test_masks_fill_their_share_to_the_byte_and_prompts_go_on_without_the_last_token():
    taken = budget()
    taken.compute(asking(mask_bytes=60), 0, 4)

    assert [taken.most_tokens(asking(mask_bytes=size), 0, 4) for size in (40, 41)] == [4, 3]
    assert taken.most_tokens(asking(mask_bytes=41), 0, 3) == 3
    assert budget().most_tokens(asking(mask_bytes=999), 0, 4) == 4


def test_a_part_of_a_prompt_spends_no_mask():
    taken = budget()
    taken.compute(asking(mask_bytes=60), 0, 3)

    assert taken.most_tokens(asking(mask_bytes=100), 0, 4) == 4


def test_log_probabilities_of_samples_fill_their_share_to_the_byte():
    taken = budget()
    taken.compute(asking(logprob_bytes=30), 0, 4)

    assert [taken.most_tokens(asking(logprob_bytes=size), 3, 1) for size in (20, 21)] == [1, 0]
    assert budget().most_tokens(asking(logprob_bytes=51), 3, 1) == 1


def test_the_log_probabilities_of_a_prompt_are_computed_as_far_as_there_is_room():
    prompt = asking(9, prompt_logprob_bytes=20)
    taken = budget()
    taken.compute(asking(logprob_bytes=30), 0, 4)

    assert [budget().most_tokens(prompt, start, 9 - start) for start in (0, 5, 6)] == [2, 2, 3]
    assert taken.most_tokens(prompt, 0, 4) == 1
    assert budget().most_tokens(asking(9, prompt_logprob_bytes=51), 0, 4) == 1


def test_the_positions_of_a_prompt_spend_their_log_probabilities():
    taken, full = budget(), budget()
    taken.compute(asking(9, prompt_logprob_bytes=10), 0, 3)
    full.compute(asking(logprob_bytes=50), 0, 4)

    assert [taken.most_tokens(asking(logprob_bytes=size), 3, 1) for size in (20, 21)] == [1, 0]
    assert full.most_tokens(asking(9, prompt_logprob_bytes=20), 0, 4) == 0


@pytest.mark.parametrize(
    ("asked", "start", "num_tokens"),
    [(asking(logprob_bytes=30), 0, 3), (asking(prompt_logprob_bytes=20, answer_bytes=50), 4, 1)],
    ids=["a part of a prompt is not sampled", "a token after the prompt is none of its positions"],
)
def test_tokens_without_log_probabilities_spend_none(asked, start, num_tokens):
    taken = budget()
    taken.compute(asked, start, num_tokens)

    assert taken.most_tokens(asking(logprob_bytes=50, answer_bytes=80), 3, 1) == 1


def test_answers_of_whole_prompts_wait_for_a_step_with_room():
    taken = budget()
    taken.compute(asking(answer_bytes=50), 0, 4)

    assert [taken.most_tokens(asking(answer_bytes=size), 0, 4) for size in (30, 31)] == [4, 0]
    assert budget().most_tokens(asking(answer_bytes=99), 0, 4) == 4


def test_the_last_token_of_a_prompt_waits_for_a_step_with_room_for_all_its_log_probabilities():
    taken = budget()
    taken.compute(asking(answer_bytes=41), 0, 4)
    prompts = [asking(4, prompt_logprob_bytes=size) for size in (13, 14)]

    assert [taken.most_tokens(prompt, 1, 3) for prompt in prompts] == [3, 2]


def test_what_the_requests_of_a_plan_spend_adds_up():
    described = budget(*[asking(params_bytes=100, params_id=number, other_bytes=200) for number in (1, 2)])
    taken = budget()
    for _ in range(2):
        taken.compute(asking(mask_bytes=30, logprob_bytes=10, answer_bytes=20), 0, 4)
    room = 1000 - 2 * (300 + TOKENS_BYTES) - TOKENS_BYTES

    assert [described.can_describe(asking(params_bytes=size, params_id=3)) for size in (100, 101)] == [True, False]
    assert [described.can_describe(asking(other_bytes=size, params_id=3)) for size in (room, room + 1)] == [True, False]
    assert [taken.most_tokens(asking(mask_bytes=size), 0, 4) for size in (40, 41)] == [4, 3]
    assert [taken.most_tokens(asking(logprob_bytes=size), 0, 4) for size in (30, 31)] == [4, 3]
    assert [taken.most_tokens(asking(answer_bytes=size), 0, 4) for size in (40, 41)] == [4, 0]


def test_drafts_are_as_many_as_masks_and_log_probabilities_leave_room_for():
    taken = budget()
    for _ in range(2):
        taken.verify(asking(mask_bytes=10, logprob_bytes=5), 2)

    assert taken.most_drafts(asking(mask_bytes=20), 9) == 3
    assert [taken.most_drafts(asking(logprob_bytes=size), 9) for size in (15, 16)] == [2, 1]
    assert taken.most_drafts(asking(mask_bytes=20, logprob_bytes=20), 1) == 1
    assert taken.most_drafts(asking(mask_bytes=61), 9) == 0
    assert taken.most_drafts(asking(), 9) == 9


def test_a_request_whose_answer_has_no_room_in_a_step_is_passed_by_later_ones(make_bench):
    bench = make_bench(messages=LIMITS)
    first, large, later = [bench.add(4) for _ in range(3)]
    first.sizes = large.sizes = MessageSizes(answer_bytes=50)

    assert list(bench.step()) == [first.key, later.key]
    assert large.key in bench.step()
