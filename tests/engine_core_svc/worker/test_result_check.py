"""Result check: it names each request whose part of a worker's result does not match the plan, and the mismatch."""

import pytest

from tetrad.engine_core_svc.core.plan import Logprobs, ModelRunnerOutput, NewRequestData, PromptScores, SchedulerOutput
from tetrad.engine_core_svc.core.request import NO_LOGPROBS, LogprobWidths
from tetrad.engine_core_svc.worker.result_check import ResultCheck

ONE, OTHER = 1, 2
ANSWER = (0.5, 0.5)


def beginning(*keys, widths=NO_LOGPROBS, num_prompt_tokens=3, pools=False):
    """A step that begins requests and computes their prompts."""
    prompt = list(range(num_prompt_tokens))
    new = [NewRequestData(key, f"r{key}", prompt, len(prompt), 0, 2, [key], None, widths, pools=pools) for key in keys]
    return SchedulerOutput(0, new_requests=new, sampling_keys=list(keys))


def sampling(*keys, **fields):
    return SchedulerOutput(1, sampling_keys=list(keys), **fields)


def tokens(*keys, rows=None, **fields):
    return ModelRunnerOutput(0, list(keys), [(7,)] * len(keys) if rows is None else rows, **fields)


def logprobs(num_positions, width):
    values = bytes(4 * num_positions * width)
    return Logprobs(values, values, bytes(4 * num_positions), num_positions, width)


def scores(num_rows, width, num_bytes=None):
    return PromptScores(bytes(4 * num_rows * width if num_bytes is None else num_bytes), num_rows, width)


@pytest.fixture
def check():
    return ResultCheck(vocab_size=100)


def problems(check, plan, result):
    check.note_plan(plan)
    return check.find_problems(plan, result)


@pytest.mark.parametrize("token_id", [0, 99])
def test_a_token_of_the_vocabulary_is_no_problem(check, token_id):
    assert problems(check, beginning(ONE), tokens(ONE, rows=[(token_id,)])) == {}


def test_an_answer_in_place_of_tokens_is_what_a_pooling_request_brings(check):
    assert problems(check, beginning(ONE, pools=True), tokens(pooling_outputs={ONE: ANSWER})) == {}


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (tokens(), "it has no pooled answer"),
        (tokens(ONE, rows=[()]), "it has no pooled answer"),
        (tokens(ONE, rows=[(7, 8)]), "it has no pooled answer"),
        (tokens(ONE, rows=[()], pooling_outputs={ONE: ANSWER}), None),
        (tokens(ONE, rows=[(7, 8)], pooling_outputs={ONE: ANSWER}), "it has 2 tokens, and its answer was to be pooled"),
    ],
)
def test_a_pooling_request_brings_an_answer_and_no_token(check, result, problem):
    assert problems(check, beginning(ONE, pools=True), result) == ({} if problem is None else {ONE: problem})


def test_an_answer_of_a_request_that_generates_is_its_problem(check):
    result = tokens(ONE, pooling_outputs={ONE: ANSWER})

    assert problems(check, beginning(ONE), result) == {ONE: "it has a pooled answer, and none was planned"}


def test_only_the_request_with_a_problem_is_named(check):
    found = problems(check, beginning(ONE, OTHER), tokens(OTHER))

    assert found == {ONE: "it has no token"}


def test_a_token_that_was_not_planned_is_a_problem(check):
    check.note_plan(beginning(ONE, OTHER))

    found = check.find_problems(sampling(OTHER), tokens(ONE, OTHER))

    assert found == {ONE: "it has a token before the end of its prompt is computed"}


@pytest.mark.parametrize(
    ("row", "drafts", "problem"),
    [
        ((7, 8), (), "it has 2 tokens, and one was planned"),
        ((), (5,), "it has 0 tokens, and at most 2 were planned"),
        ((5, 6, 7), (5,), "it has 3 tokens, and at most 2 were planned"),
    ],
)
def test_a_wrong_number_of_tokens_is_named_with_the_planned_one(check, row, drafts, problem):
    plan = beginning(ONE)
    plan.draft_tokens[ONE] = drafts

    assert problems(check, plan, tokens(ONE, rows=[row])) == {ONE: problem}


SAMPLED, OF_PROMPT = LogprobWidths(sampled=3), LogprobWidths(prompt=2)
MISSING = "it has no log-probabilities"


@pytest.mark.parametrize(
    ("widths", "problem"), [(SAMPLED, MISSING), (OF_PROMPT, f"{MISSING} of its prompt"), (NO_LOGPROBS, None)]
)
def test_a_request_brings_the_log_probabilities_that_it_asked_for(check, widths, problem):
    found = problems(check, beginning(ONE, widths=widths), tokens(ONE))

    assert found == ({} if problem is None else {ONE: problem})


@pytest.mark.parametrize(("num_prompt_tokens", "problem"), [(1, None), (2, f"{MISSING} of its prompt")])
def test_the_first_token_of_a_prompt_has_no_log_probability(check, num_prompt_tokens, problem):
    found = problems(check, beginning(ONE, widths=OF_PROMPT, num_prompt_tokens=num_prompt_tokens), tokens(ONE))

    assert found == ({} if problem is None else {ONE: problem})


def test_log_probabilities_without_a_token_are_a_problem(check):
    check.note_plan(beginning(ONE, OTHER, widths=SAMPLED))

    found = check.find_problems(sampling(OTHER), tokens(OTHER, logprobs={each: logprobs(1, 3) for each in (ONE, OTHER)}))

    assert found == {ONE: f"it has {MISSING.removeprefix('it has no ')}, and none were planned"}


def test_log_probabilities_of_a_prompt_may_arrive_before_its_token(check):
    """A worker computes them with the prompt, whose last part is in a later step."""
    check.note_plan(beginning(ONE, widths=OF_PROMPT))

    assert check.find_problems(sampling(), tokens(prompt_logprobs={ONE: logprobs(2, 2)})) == {}
    wrong = check.find_problems(sampling(), tokens(prompt_logprobs={ONE: logprobs(1, 2)}))
    assert "for 1 positions of 2 candidates" in wrong[ONE]


@pytest.mark.parametrize("fields", [{"widths": SAMPLED}, {"pools": True}])
def test_a_removed_request_is_forgotten(check, fields):
    """Its key may be given to another request, which asks for nothing of that kind."""
    check.note_plan(beginning(ONE, **fields))
    check.note_plan(sampling(removed_keys=[ONE]))

    assert problems(check, beginning(ONE), tokens(ONE)) == {}


SCORED = LogprobWidths(scored=4, scored_from=2)


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ({}, "it has no scores of its prompt"),
        ({ONE: scores(7, 4)}, None),
        ({ONE: scores(8, 4)}, "it has scores of its prompt in 8 rows of 4 in 128 bytes, and 7 rows of 4 were planned"),
        ({ONE: scores(7, 4, 3)}, "it has scores of its prompt in 7 rows of 4 in 3 bytes, and 7 rows of 4 were planned"),
    ],
)
def test_scores_of_a_prompt_come_with_its_first_token(check, found, problem):
    plan = beginning(ONE, widths=SCORED, num_prompt_tokens=10)

    assert problems(check, plan, tokens(ONE, prompt_scores=found)) == ({} if problem is None else {ONE: problem})
    assert check.find_problems(sampling(ONE), tokens(ONE)) == {}


def test_scores_that_were_not_planned_are_a_problem(check):
    result = tokens(ONE, prompt_scores={ONE: scores(1, 1)})

    assert problems(check, beginning(ONE), result) == {ONE: "it has scores of its prompt, and none were planned"}
