"""Which answers fit the plans in flight, where requests fail alone."""

import pytest

from tetrad.engine_core_svc.in_flight import InFlight
from tetrad.engine_core_svc.scheduler.output import CachedRequestData, ModelRunnerOutput, SchedulerOutput
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

    with pytest.raises(InternalError, match=r"was to bring tokens of requests \[1\], but brought \[\]"):
        in_flight.take(result(1))
