"""The last requests: a bounded number, read from the reader's last position."""

from tetrad.frontend.observability.recent_requests import RecentRequests
from tetrad.frontend.request.request_state import RequestState
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.services.errors import InternalError


def ended(name, *, queued_s=None, first=None, last=None, finished=None):
    state = RequestState(name, "a prompt", [1, 2, 3], SamplingParams(), arrival_time=100.0)
    state.metrics.queued_time_s = queued_s
    state.metrics.first_token_time, state.metrics.last_token_time, state.metrics.finished_time = first, last, finished
    return state


def test_the_oldest_go_first():
    recent = RecentRequests(3)
    for name in "abcde":
        recent.note(ended(name), None)

    assert [each.request_id for each in recent.after(0)] == ["c", "d", "e"]


def test_a_reader_gets_what_came_since():
    recent = RecentRequests(3)
    for name in "abc":
        recent.note(ended(name), None)
    [_, second, third] = recent.after(0)

    assert recent.after(second.number) == [third]
    assert recent.after(third.number) == []


def test_none_are_kept_where_nobody_can_look():
    recent = RecentRequests(0)
    recent.note(ended("a"), None)

    assert recent.after(0) == []


def test_phases_follow_one_another():
    recent = RecentRequests(1)
    recent.note(ended("a", queued_s=0.5, first=102.0, last=105.0, finished=105.0), None)
    [told] = recent.after(0)

    assert (told.queue_s, told.prefill_s, told.decode_s, told.total_s) == (0.5, 1.5, 3.0, 5.0)


def test_what_had_no_token_has_no_phases():
    recent = RecentRequests(1)
    recent.note(ended("a", finished=101.0), InternalError("the prompt was: a prompt"))
    [told] = recent.after(0)

    assert (told.queue_s, told.prefill_s, told.decode_s, told.total_s) == (None, None, None, 1.0)
    assert told.error == "INTERNAL"
