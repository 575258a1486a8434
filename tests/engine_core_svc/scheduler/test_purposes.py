"""Results of requests that generate: their log-probabilities, and the repetition rule that ends them."""

import pytest

from tetrad.engine_core_svc.core.plan import Logprobs, ModelRunnerOutput
from tetrad.engine_core_svc.core.request import RepetitionRule, RequestStatus, StopRules
from tetrad.engine_core_svc.scheduler.results import repeats


@pytest.mark.parametrize(
    ("output", "rule", "expected"),
    [
        ([1, 2, 1, 2, 1, 2], RepetitionRule(4, 1, 3), True),
        ([1, 2, 1, 2, 1], RepetitionRule(4, 1, 3), False),
        ([9, 5, 5, 5], RepetitionRule(4, 1, 3), True),
        ([9, 5, 5, 5], RepetitionRule(4, 2, 3), False),
        ([1, 2, 3], RepetitionRule(3, 1, 2), False),
        ([], RepetitionRule(3, 1, 2), False),
        ([1, 2, 3, 9, 2, 3], RepetitionRule(3, 1, 2), False),
        ([7, 7], RepetitionRule(0, 0, 0), False),
    ],
)
def test_repetition_is_a_pattern_that_stands_often_enough_at_the_end(output, rule, expected):
    assert repeats(output, rule) is expected


def test_the_prompt_is_no_part_of_a_repetition():
    rule = RepetitionRule(4, 1, 3)

    assert repeats([1, 2, 1, 2, 1, 2], rule)
    assert not repeats([1, 2, 1, 2, 1, 2], rule, start=1)


def test_a_request_ends_when_its_own_output_repeats(make_bench):
    bench = make_bench()
    request = bench.add([5, 5], stop=StopRules(repetition=RepetitionRule(1, 1, 3)))
    bench.next_token = lambda key, length: 5

    bench.run()

    assert (request.status, request.num_output_tokens) == (RequestStatus.FINISHED_REPETITION, 3)


def test_an_output_has_the_log_probabilities_of_its_tokens_and_of_the_prompt(make_bench):
    bench = make_bench()
    request = bench.add(3)
    plan = bench.plan()
    sampled, of_prompt = (Logprobs(bytes(4 * size), bytes(4 * size), bytes(4 * size), size, 1) for size in (1, 2))

    result = ModelRunnerOutput(
        plan.step_id, [request.key], [(7,)], logprobs={request.key: sampled}, prompt_logprobs={request.key: of_prompt}
    )
    [output] = bench.scheduler.update(result)

    assert (output.logprobs, output.prompt_logprobs) == (sampled, of_prompt)
