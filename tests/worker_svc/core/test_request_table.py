"""A request that cannot run is answered with its reason; the others of the step are not disturbed.

A plan that contradicts the worker's table is refused as a whole.
"""

import dataclasses

import numpy as np
import pytest

from tests.worker_svc.conftest import LAYOUT
from tetrad.services.errors import InvalidRequest, Unsupported
from tetrad.worker_svc.core.plan import SamplingSpec


@pytest.fixture
def driver(tiny, make_driver):
    driver = make_driver(tiny)
    driver.add(0, [3, 4, 5])
    driver.generate(1)
    return driver


def fail(driver, plan, handle):
    """Run a plan in which `handle` must fail and request 0 must not; return the error."""
    result = driver.runner.execute(plan)
    assert result.handles.tolist() == [0]
    assert [found for found, _ in result.failures] == [handle]
    return result.failures[0][1]


def test_refused_request(driver):
    driver.add(1, [3, 4])
    plan = driver.plan({0: 1, 1: 2})
    new = dataclasses.replace(plan.new_requests[0], refusal=Unsupported("No LoRA here."))

    error = fail(driver, dataclasses.replace(plan, new_requests=[new]), 1)

    assert isinstance(error, Unsupported)


@pytest.mark.parametrize(
    ("prompt", "sampling"),
    [
        ([3, 320], SamplingSpec()),
        ([3], SamplingSpec(logit_bias={320: 1.0})),
        ([3], SamplingSpec(allowed_token_ids=(1, 999))),
        ([3], SamplingSpec(stop_token_ids=(5000,), min_tokens=2)),
        ([3], SamplingSpec(bad_words=((1, 320),))),
    ],
)
def test_ids_outside_the_vocabulary(prompt, sampling, driver):
    driver.add(1, prompt, sampling)

    assert isinstance(fail(driver, driver.plan({0: 1, 1: len(prompt)}), 1), InvalidRequest)


def test_failed_request_is_ignored_until_it_is_removed(driver):
    driver.add(1, [3, 320])
    fail(driver, driver.plan({0: 1, 1: 2}), 1)

    in_flight = driver.runner.execute(driver.plan({0: 1, 1: 1}))
    assert (in_flight.handles.tolist(), in_flight.failures) == ([0], [])

    driver.remove(1)
    driver.add(1, [3, 20])
    assert sorted(driver.step({0: 1, 1: 2}).handles.tolist()) == [0, 1]


def test_unknown_handle(driver):
    driver.add(7, [3, 4], SamplingSpec()).is_new = False

    with pytest.raises(InvalidRequest, match="no request with handle 7"):
        driver.runner.execute(driver.plan({0: 1, 7: 2}))


def test_plan_beyond_the_known_tokens(driver):
    driver.add(1, [3, 4, 5])
    driver.requests[1].num_tokens = 9

    with pytest.raises(InvalidRequest, match="knows 3 tokens"):
        driver.runner.execute(driver.plan({0: 1, 1: 9}))


def test_plan_beyond_the_longest_sequence(tiny, make_driver):
    """The last sampled token is known, but no step computes it: the model may have no position for it."""
    driver = make_driver(tiny, dataclasses.replace(LAYOUT, max_model_len=32))
    driver.add(0, [3] * 31)
    assert len(driver.generate(2)[0]) == 2

    with pytest.raises(InvalidRequest, match=r"ends at token 33 .* max_model_len is 32"):
        driver.step({0: 1})


def test_plan_without_blocks_for_its_tokens(driver):
    driver.add(1, [3] * 40)
    plan = driver.plan({0: 1, 1: 40})
    new = dataclasses.replace(plan.new_requests[0], block_ids=np.array([[9]]))

    with pytest.raises(InvalidRequest, match="1 blocks of"):
        driver.runner.execute(dataclasses.replace(plan, new_requests=[new]))


def test_plan_that_names_a_request_twice(driver):
    plan = driver.plan({0: 1})
    twice = {name: np.repeat(getattr(plan.cached, name), 2) for name in ("handles", "num_scheduled_tokens", "num_new_blocks")}
    cached = dataclasses.replace(plan.cached, **twice, num_computed_tokens=np.repeat(plan.cached.num_computed_tokens, 2))

    with pytest.raises(InvalidRequest, match="names a request twice"):
        driver.runner.execute(dataclasses.replace(plan, cached=cached))


def test_removing_an_unknown_handle_is_no_error(driver):
    plan = dataclasses.replace(driver.plan({0: 1}), removed_handles=[99])

    assert driver.runner.execute(plan).handles.tolist() == [0]


def test_step_with_nothing_but_removals(driver):
    driver.remove(0)

    result = driver.runner.execute(driver.plan({}))

    assert (len(result.handles), driver.runner.num_requests) == (0, 0)


def test_forgotten_requests_free_their_slots(driver):
    driver.runner.forget_all()
    driver.requests.clear()
    for handle in range(driver.layout.max_num_seqs):
        driver.add(handle, [5])

    assert len(driver.step(dict.fromkeys(driver.requests, 1)).handles) == driver.layout.max_num_seqs


def test_context_may_fill_to_the_last_token(tiny, make_driver):
    driver = make_driver(tiny)
    driver.add(0, [7] * 1020)

    outputs = driver.generate(5)

    assert len(outputs[0]) == 5
