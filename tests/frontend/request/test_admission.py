"""Admission: its counts, its refusals, and their retry delay."""

import pytest

from tetrad.frontend.request.admission import Admission, Rate, estimated_tokens
from tetrad.frontend.request.prompts import estimated_prompt_tokens
from tetrad.services.errors import Overloaded


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_requests_beyond_the_limit_are_refused_until_one_is_released(clock):
    admission = Admission(2, 0, clock=clock)
    first = admission.admit(num_tokens=5)
    admission.admit(num_tokens=5)

    with pytest.raises(Overloaded, match="2 unfinished requests; at most 2"):
        admission.admit(num_tokens=5)
    first.release()

    admission.admit(num_tokens=5)


def test_each_of_n_outputs_counts(clock):
    admission = Admission(4, 0, clock=clock)
    admission.admit(num_requests=3, num_tokens=1)

    with pytest.raises(Overloaded):
        admission.admit(num_requests=2, num_tokens=1)


def test_tokens_count_until_the_first_token_comes(clock):
    admission = Admission(0, 100, clock=clock)
    ticket = admission.admit(num_tokens=80)
    with pytest.raises(Overloaded, match="Prompts of 80 tokens wait at this server; at most 100 are taken"):
        admission.admit(num_tokens=30)

    ticket.leave_queue()

    admission.admit(num_tokens=30)
    assert admission.num_requests == 2


def test_an_estimate_is_replaced_by_what_the_prompt_has(clock):
    admission = Admission(0, 100, clock=clock)
    ticket = admission.admit(num_tokens=90)

    ticket.correct(10)

    admission.admit(num_tokens=90)
    assert admission.num_queued_tokens == 100


def test_what_is_alone_is_taken_however_large(clock):
    admission = Admission(2, 100, clock=clock)

    ticket = admission.admit(num_requests=5, num_tokens=1000)
    ticket.release()
    ticket.release()

    assert (admission.num_requests, admission.num_queued_tokens) == (0, 0)


def test_the_prompts_of_a_call_are_taken_together_or_not_at_all(clock):
    admission = Admission(4, 100, clock=clock)
    large = admission.admit_all(2, [10, 20, 30])
    assert (admission.num_requests, admission.num_queued_tokens) == (6, 120)
    for ticket in large:
        ticket.release()
    admission.admit(num_tokens=5)

    with pytest.raises(Overloaded, match="1 unfinished requests; at most 4"):
        admission.admit_all(2, [1, 1])
    with pytest.raises(Overloaded, match="this request brings about 96"):
        admission.admit_all(1, [48, 48])

    assert (admission.num_requests, admission.num_queued_tokens) == (1, 5)


def test_zero_is_no_limit(clock):
    admission = Admission(0, 0, clock=clock)

    for _ in range(10_000):
        admission.admit(num_tokens=10_000)


@pytest.mark.parametrize(("finished_a_second", "retry_after_s"), [(0, 60.0), (1, 10.0), (5, 2.0), (1000, 1.0)])
def test_retry_after_is_the_time_in_which_a_tenth_of_the_queue_ends(clock, finished_a_second, retry_after_s):
    admission = Admission(100, 0, clock=clock)
    for _ in range(10):
        for _ in range(finished_a_second):
            admission.admit(num_tokens=1).release()
        clock.now += 0.999999
    for _ in range(100):
        admission.admit(num_tokens=1)

    with pytest.raises(Overloaded) as refused:
        admission.check()

    # The window is between 10 and 20 seconds long, the work was in the first 10.
    assert retry_after_s <= refused.value.retry_after_s <= min(2 * retry_after_s, 60) + 0.1


def test_a_rate_forgets(clock):
    rate = Rate(clock)
    rate.add(100)
    clock.now += 10
    assert rate.per_second() == 10

    clock.now += 15

    assert rate.per_second() == 0


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [("x" * 400, 101), ([1, 2, 3], 3), ({"prompt": "abcd"}, 2), ({"prompt_token_ids": [1, 2]}, 2), (7, 1), ({}, 1)],
)
def test_prompts_are_estimated_without_being_read(prompt, tokens):
    assert estimated_prompt_tokens(prompt) == tokens
    assert estimated_tokens(0) == 1
