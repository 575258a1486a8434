"""The limits of waiting requests and tokens, and the retry delay of a refusal."""

import pytest

from tetrad.engine_core_svc.engine.queue_limits import QueueLimits
from tetrad.services.errors import Overloaded


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def refusal(limits, **amounts):
    with pytest.raises(Overloaded) as refused:
        limits.check(**{"num_reqs": 0, "num_tokens": 0, "new_tokens": 1} | amounts)
    return refused.value


def test_what_fits_is_taken():
    limits = QueueLimits(10, 1000)

    limits.check(num_reqs=9, num_tokens=900, new_tokens=100)


def test_a_call_that_is_alone_in_the_queue_is_taken_whole():
    limits = QueueLimits(10, 1000)

    limits.check(num_reqs=10, num_of_call=10, num_tokens=1000, new_tokens=100)
    refusal(limits, num_reqs=11, num_of_call=10)


def test_too_many_requests_and_too_many_tokens_are_refused_naming_the_numbers():
    limits = QueueLimits(10, 1000)

    assert refusal(limits, num_reqs=10).message == "10 requests are waiting; this engine queues at most 10."
    # Those that were preempted or resumed wait, too.
    assert refusal(limits, num_reqs=17).message == "17 requests are waiting; this engine queues at most 10."
    assert "101 more exceed the 1000" in refusal(limits, num_reqs=9, num_tokens=900, new_tokens=101).message


def test_the_time_to_come_back_follows_the_present_rate(clock):
    limits = QueueLimits(1000, clock=clock)
    for _ in range(10):
        clock.now += 1
        limits.note_departures(20, 400)

    assert refusal(limits, num_reqs=1000).retry_after_s == pytest.approx(0.1 * 1000 / 20)


def test_the_rate_of_long_ago_counts_no_more(clock):
    limits = QueueLimits(1000, clock=clock)
    limits.note_departures(1_000_000, 1)
    at_once = refusal(limits, num_reqs=1000).retry_after_s

    clock.now += 60

    assert at_once == 1.0
    assert refusal(limits, num_reqs=1000).retry_after_s == 10.0


def test_nobody_is_sent_away_for_more_than_a_minute(clock):
    limits = QueueLimits(100_000, clock=clock)
    limits.note_departures(1, 1)

    assert refusal(limits, num_reqs=100_000).retry_after_s == 60.0
