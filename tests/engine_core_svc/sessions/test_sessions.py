"""Sessions: their requests, the message of a step for each, and statistics without outputs."""

import time

import pytest

from tetrad.engine_core_svc.core.plan import EngineCoreOutput, FinishReason
from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.scheduler.stats import SchedulerStats
from tetrad.engine_core_svc.sessions.outbox import Notice
from tetrad.engine_core_svc.sessions.sessions import Sessions
from tetrad.services.errors import AlreadyExists

IDLE = SchedulerStats(0, 0, 0.0, 1, 2, 3, 4)
BUSY = SchedulerStats(1, 0, 0.5, 1, 2, 3, 4)
LONG_AGO = 1.0
"""Seconds before a moment: longer than a session goes without hearing of the load."""


def request_of(session, key=1, request_id="r", handle=7):
    return Request(
        key=key, request_id=request_id, token_ids=[1], num_prompt_tokens=1, max_total_tokens=9, handle=handle,
        session_key=session.key,
    )  # fmt: skip


@pytest.fixture
def sessions():
    return Sessions()


async def messages(session):
    """Return what a session has been sent, and empty its outbox."""
    session.outbox.close()
    found = []
    while (message := await session.outbox.get()) is not None:
        found.append(message)
    return found


def test_sessions_have_keys_and_names_of_their_own(sessions):
    first, second = sessions.open("a"), sessions.open("b")

    assert [session.client_id for session in sessions] == ["a", "b"]
    assert (first.key, second.key, len(sessions)) == (1, 2, 2)


async def test_a_closed_session_is_gone_and_names_what_it_left_unfinished(sessions):
    closed, other = sessions.open("a"), sessions.open("b")
    left, foreign = request_of(closed, key=5), request_of(other, key=6)
    sessions.add(left)
    sessions.add(foreign)

    keys = sessions.close(closed)

    assert keys == [5]
    assert (sessions.of(left), sessions.of(foreign)) == (None, other)
    assert list(sessions) == [other]
    assert await closed.outbox.get() is None
    assert sessions.close(closed) == [5], "closing again changes nothing"


def test_an_id_and_a_handle_are_in_use_until_their_request_has_ended(sessions):
    session = sessions.open("a")
    request = request_of(session, request_id="r", handle=7)
    sessions.add(request)

    with pytest.raises(AlreadyExists, match="Request id r is in use") as same_id:
        session.check_free("r", 8)
    with pytest.raises(AlreadyExists, match="Handle 7 is in use") as same_handle:
        session.check_free("s", 7)
    sessions.remove([request])
    session.check_free("r", 7)

    assert (same_id.value.field, same_handle.value.field) == ("request_id", "handle")


def test_what_ends_after_its_session_or_twice_is_ignored(sessions):
    session = sessions.open("a")
    known, of_none = request_of(session, handle=7), request_of(session, key=2, request_id="s", handle=8)
    of_none.session_key = 99
    sessions.add(known)

    sessions.remove([of_none, known, known])

    assert (session.request_keys, session.handles) == ({}, set())


async def test_each_session_gets_the_outputs_of_its_own_requests(sessions):
    first, second, quiet = (sessions.open(name) for name in "abc")
    requests = [request_of(first), request_of(second, key=2), request_of(first, key=3, request_id="s", handle=8)]
    for request in requests:
        sessions.add(request)
    outputs = [EngineCoreOutput(request, [request.key]) for request in requests]
    outputs[2].finish_reason = FinishReason.STOP

    sessions.publish(4, outputs, BUSY)

    [of_first], [of_second] = await messages(first), await messages(second)
    assert (of_first.step_id, of_first.outputs, of_first.stats) == (4, [outputs[0], outputs[2]], BUSY)
    assert (of_second.outputs, of_second.stats) == ([outputs[1]], BUSY)
    assert await messages(quiet) == []
    assert sessions.num_output_messages == 2
    assert first.request_keys == {"r": 1}, "what has ended is forgotten"
    stats, told_at = first.last_stats
    assert stats is BUSY
    assert told_at <= time.monotonic()


async def test_outputs_of_a_closed_session_go_to_nobody(sessions):
    closed, other = sessions.open("a"), sessions.open("b")
    output = EngineCoreOutput(request_of(closed), [1], FinishReason.STOP)
    sessions.close(closed)

    sessions.publish(0, [output], BUSY)

    assert await messages(other) == []
    assert sessions.num_output_messages == 0


@pytest.mark.parametrize(
    ("told", "told_s_ago", "stats", "hears"),
    [
        (None, LONG_AGO, BUSY, True),
        (None, 0.1, BUSY, True),
        (None, 0.05, BUSY, False),
        (BUSY, LONG_AGO, BUSY, True),
        (BUSY, 0.0, IDLE, True),
        (IDLE, LONG_AGO, IDLE, False),
        (None, LONG_AGO, IDLE, False),
    ],
)
def test_a_session_without_outputs_hears_of_the_load_now_and_then_and_of_its_end_at_once(
    sessions, told, told_s_ago, stats, hears
):
    session = sessions.open("a")
    session.last_stats = (told, -told_s_ago)

    assert session.needs_stats(stats, 0.0) is hears


async def test_the_load_alone_is_a_message_that_counts_as_none_with_outputs(sessions):
    session = sessions.open("a")
    session.last_stats = (None, time.monotonic() - LONG_AGO)

    sessions.publish(6, [], BUSY)
    sessions.publish(7, [], BUSY)

    [alone] = await messages(session)
    assert (alone.step_id, alone.outputs, alone.stats) == (6, [], BUSY)
    assert (session.last_stats[0], sessions.num_output_messages) == (BUSY, 0)


async def test_everybody_gets_a_notice(sessions):
    both = [sessions.open("a"), sessions.open("b")]
    notice = Notice("DRAINING", "It ends.")

    sessions.broadcast(notice)

    assert [await messages(session) for session in both] == [[notice], [notice]]
