"""Matching of results to plans in flight, and results that are wrong for one request."""

from dataclasses import replace

import pytest

from tetrad.engine_core_svc.core.plan import (
    CachedRequestData,
    Logprobs,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
)
from tetrad.engine_core_svc.core.request import NO_LOGPROBS, LogprobWidths
from tetrad.engine_core_svc.worker.in_flight import InFlight
from tetrad.services.errors import InternalError, InvalidRequest

FAILING, OTHER = 1, 2


def plan(step_id, *keys, removed=()):
    """A step in which these requests sample."""
    columns = CachedRequestData(list(keys), [1] * len(keys), [0] * len(keys), [0] * len(keys))
    return SchedulerOutput(step_id, cached_requests=columns, removed_keys=list(removed), sampling_keys=list(keys))


def result(step_id, *keys, failed=()):
    failures = {key: InvalidRequest("Nothing is left to sample.") for key in failed}
    return ModelRunnerOutput(step_id, list(keys), [(7,)] * len(keys), failures=failures)


@pytest.fixture
def in_flight():
    return InFlight(vocab_size=100)


@pytest.mark.parametrize(("step_ids", "text"), [([3, 4], "but step 3 was next"), ([], "but step none was next")], ids=str)
def test_a_result_that_does_not_answer_the_oldest_plan_is_a_fault(in_flight, step_ids, text):
    for step_id in step_ids:
        in_flight.add(plan(step_id, OTHER))

    with pytest.raises(InternalError, match=f"it answered step 4, {text}") as fault:
        in_flight.take(result(4, OTHER))
    assert fault.value.reason == "WORKER_FAULT"


def test_a_plan_sent_before_a_failure_was_known_need_not_bring_that_request(in_flight):
    """Although the plan that removes the request has been sent meanwhile: workers run plans in order."""
    in_flight.add(plan(0, FAILING, OTHER))
    in_flight.add(plan(1, FAILING, OTHER))
    in_flight.take(result(0, OTHER, failed=[FAILING]))
    in_flight.add(plan(2, OTHER, removed=[FAILING]))

    in_flight.take(result(1, OTHER))
    in_flight.take(result(2, OTHER))

    assert not len(in_flight)


def test_a_request_that_has_failed_and_comes_again_must_bring_its_token(in_flight):
    in_flight.add(plan(0, FAILING))
    in_flight.take(result(0, failed=[FAILING]))
    in_flight.add(plan(1, FAILING, removed=[FAILING]))
    late = result(1)

    in_flight.take(late)

    assert "it has no token" in late.failures[FAILING].message


ASKING = LogprobWidths(sampled=3, prompt=2)
PROMPT = [5, 6, 7]


def logprobs(num_positions, width, *, num_bytes=None):
    values = bytes(4 * num_positions * width if num_bytes is None else num_bytes)
    return Logprobs(values, values, bytes(4 * num_positions), num_positions, width)


def first_plan(*, widths=ASKING, token_ids=PROMPT, samples=True):
    """The step that begins FAILING, which asks for log-probabilities, and OTHER, which does not."""
    new = [
        NewRequestData(FAILING, "r1", token_ids, len(PROMPT), 0, 2, [1], None, widths),
        NewRequestData(OTHER, "r2", PROMPT, len(PROMPT), 0, 3, [2], None),
    ]
    return SchedulerOutput(0, new_requests=new, sampling_keys=[FAILING, OTHER] if samples else [OTHER])


def good():
    """What answers that step."""
    return ModelRunnerOutput(
        0,
        [FAILING, OTHER],
        [(7,), (8,)],
        logprobs={FAILING: logprobs(1, 3)},
        prompt_logprobs={FAILING: logprobs(2, 2)},
    )


def test_a_result_as_planned_is_not_changed(in_flight):
    in_flight.add(first_plan())
    answer = good()

    in_flight.take(answer)

    assert answer == good()


def with_rows(**rows):
    keys = {"failing": FAILING, "other": OTHER}
    return {"keys": [keys[name] for name in rows], "token_ids": list(rows.values())}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (with_rows(other=(8,)), "it has no token"),
        ({"keys": [FAILING, OTHER, FAILING], "token_ids": [(7,), (8,), (9,)]}, "it is named 2 times"),
        (with_rows(failing=(7, 8), other=(8,)), "it has 2 tokens"),
        (with_rows(failing=(), other=(8,)), "it has 0 tokens"),
        (with_rows(failing=(100,), other=(8,)), "it has token 100, and the vocabulary has 100"),
        ({"logprobs": {}}, "it has no log-probabilities"),
        ({"logprobs": {FAILING: logprobs(2, 3)}}, "for 2 positions of 3 candidates in 24 bytes, and 1 positions of 3"),
        ({"logprobs": {FAILING: logprobs(1, 4)}}, "for 1 positions of 4 candidates"),
        ({"logprobs": {FAILING: logprobs(1, 3, num_bytes=16)}}, "in 16 bytes"),
        ({"prompt_logprobs": {}}, "it has no log-probabilities of its prompt"),
        ({"prompt_logprobs": {FAILING: logprobs(3, 2)}}, "of its prompt for 3 positions"),
        ({"prompt_logprobs": {FAILING: logprobs(2, 2, num_bytes=20)}}, "in 20 bytes"),
    ],
)
def test_what_is_wrong_with_one_request_fails_that_one(in_flight, changes, problem):
    """Its tokens in the step behind, which the worker runs before it hears of this, do not count either."""
    in_flight.add(first_plan())
    in_flight.add(plan(1, FAILING, OTHER))
    wrong, behind = replace(good(), **changes), result(1, FAILING, OTHER)

    in_flight.take(wrong)
    in_flight.take(behind)

    assert problem in wrong.failures[FAILING].message
    assert wrong.failures[FAILING].reason == "WORKER_FAULT"
    assert (wrong.keys, wrong.token_ids, wrong.logprobs, wrong.prompt_logprobs) == ([OTHER], [(8,)], {}, {})
    assert (behind.keys, behind.failures) == ([OTHER], {})


def test_a_token_before_the_end_of_the_prompt_fails_its_request(in_flight):
    in_flight.add(first_plan(widths=NO_LOGPROBS, samples=False))
    wrong = ModelRunnerOutput(0, [FAILING, OTHER], [(7,), (8,)])

    in_flight.take(wrong)

    assert "before the end of its prompt" in wrong.failures[FAILING].message
    assert wrong.keys == [OTHER]


@pytest.mark.parametrize(
    ("tokens", "problem"),
    [
        ((7,), None),
        ((7, 8), None),
        ((7, 8, 9), None),
        ((7, 9), None),
        ((), "it has 0 tokens, and at most 3 were planned"),
        ((7, 8, 9, 9), "it has 4 tokens, and at most 3 were planned"),
        ((8, 9), "it has tokens [8, 9], of which all but the last must be drafts, and these were [7, 8]"),
        ((7, 8, 100), "it has token 100, and the vocabulary has 100"),
    ],
)
def test_tokens_of_a_request_with_drafts_are_some_of_these_and_one_more(in_flight, tokens, problem):
    planned = plan(0, FAILING, OTHER)
    planned.draft_tokens[FAILING] = (7, 8)
    in_flight.add(planned)
    answer = ModelRunnerOutput(0, [FAILING, OTHER], [tokens, (8,)])

    in_flight.take(answer)

    if problem is None:
        assert answer == ModelRunnerOutput(0, [FAILING, OTHER], [tokens, (8,)])
    else:
        assert problem in answer.failures[FAILING].message
        assert answer.keys == [OTHER]


def test_each_token_of_a_request_with_drafts_has_logprobs(in_flight):
    in_flight.add(first_plan())
    in_flight.take(good())
    verifying = plan(1, FAILING, OTHER)
    verifying.draft_tokens[FAILING] = (7, 8)
    in_flight.add(verifying)
    answer = ModelRunnerOutput(1, [FAILING, OTHER], [(7, 9), (8,)], logprobs={FAILING: logprobs(2, 3)})

    in_flight.take(answer)

    assert answer.failures == {}


def test_logprobs_that_were_not_asked_for_fail_their_request(in_flight):
    in_flight.add(first_plan(widths=NO_LOGPROBS))
    wrong = good()

    in_flight.take(wrong)

    assert "log-probabilities, and none were planned" in wrong.failures[FAILING].message


def test_what_a_failed_request_has_besides_its_error_is_dropped(in_flight):
    """Token, log-probabilities and all: the worker's own error is the one that counts."""
    in_flight.add(first_plan())
    error = InvalidRequest("Nothing is left to sample.")
    wrong = replace(good(), failures={FAILING: error})

    in_flight.take(wrong)

    assert wrong.failures == {FAILING: error}
    assert (wrong.keys, wrong.logprobs, wrong.prompt_logprobs) == ([OTHER], {}, {})


def test_a_prompts_logprobs_come_once(in_flight):
    in_flight.add(first_plan())
    in_flight.add(plan(1, FAILING, OTHER))
    in_flight.take(good())
    second = replace(result(1, FAILING, OTHER), logprobs={FAILING: logprobs(1, 3)})

    in_flight.take(second)

    assert second.failures == {}


@pytest.mark.parametrize("brings_prompt", [True, False])
def test_a_request_with_output_need_not_bring_its_prompts_logprobs_again(in_flight, brings_prompt):
    in_flight.add(first_plan(token_ids=[*PROMPT, 9]))
    answer = good()
    if not brings_prompt:
        answer.prompt_logprobs.clear()

    in_flight.take(answer)

    assert answer.failures == {}


@pytest.mark.parametrize("name", ["failures", "logprobs", "prompt_logprobs"])
def test_whatever_names_a_stranger_answers_another_plan(in_flight, name):
    in_flight.add(first_plan())
    value = InvalidRequest("no") if name == "failures" else logprobs(1, 1)

    with pytest.raises(InternalError, match=r"names requests \[99\], which the step does not have"):
        in_flight.take(replace(good(), **{name: {99: value}}))
