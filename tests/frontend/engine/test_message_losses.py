"""MessageLosses: fails the requests of a large message over which two sessions broke, and keeps all others."""

from types import SimpleNamespace

import pytest

from tests.frontend.engine.test_adds import requests_of
from tetrad.frontend.engine import crash_isolation
from tetrad.frontend.engine.crash_isolation import MessageLosses
from tetrad.services.message_size import BATCH_BYTES
from tetrad.v1 import types_pb2


def message(num_bytes=2 * BATCH_BYTES, n=1, salt=0):
    return SimpleNamespace(num_bytes=num_bytes, requests=requests_of(types_pb2.SamplingParams(), n, salt=salt))


def lose(losses, *messages, by_transport=True, is_another_engine=False, come_on=lambda: None):
    """Run a session that breaks over these messages; return the requests that the next session fails at its start."""
    for each in messages:
        losses.note_sent(each)
    come_on()
    losses.note_loss(by_transport=by_transport)
    return losses.begin(is_another_engine=is_another_engine)


def test_all_requests_of_a_large_message_fail_with_its_second_loss():
    losses, large, small = MessageLosses(), message(n=3), message(num_bytes=BATCH_BYTES, salt=1)

    assert lose(losses, small, large) == []
    assert lose(losses, small, large) == large.requests


def test_of_several_large_messages_the_largest_is_blamed():
    losses, large, larger = MessageLosses(), message(), message(num_bytes=3 * BATCH_BYTES, salt=1)

    assert lose(losses, larger, large) == []
    assert lose(losses, larger, large) == larger.requests


@pytest.mark.parametrize("how", [{"by_transport": False}, {"is_another_engine": True}], ids=["lost", "crashed"])
def test_a_connection_that_is_lost_and_an_engine_core_that_crashes_blame_nobody(how):
    losses, large = MessageLosses(), message()

    assert [lose(losses, large, **how) for _ in range(4)] == [[]] * 4


@pytest.mark.parametrize("progress", ["a token", "its end"])
def test_a_message_that_was_read_is_not_blamed(progress):
    losses, large = MessageLosses(), message()
    sequence = large.requests[0].sequence

    def come_on():
        if progress == "a token":
            sequence.output_token_ids.append(1)
        else:
            sequence.finished = True

    assert [lose(losses, large, come_on=come_on) for _ in range(3)] == [[]] * 3


def test_a_message_of_long_ago_is_not_blamed(monkeypatch):
    losses, large = MessageLosses(), message()
    monkeypatch.setattr(crash_isolation, "_IN_DOUBT_S", -1.0)

    assert [lose(losses, large) for _ in range(3)] == [[]] * 3


def test_messages_that_are_not_in_doubt_are_not_kept(monkeypatch):
    """They hold prompts of megabytes, and a session may last for months."""
    losses, read, old = MessageLosses(), message(), message(salt=1)
    losses.note_sent(read)
    read.requests[0].sequence.finished = True
    losses.forget(read.requests[0].sequence.request_id)
    num_kept_of_read = len(losses._sent)
    losses.note_sent(old)
    monkeypatch.setattr(crash_isolation, "_IN_DOUBT_S", -1.0)

    losses.note_sent(message(salt=2))

    assert num_kept_of_read == 0
    assert len(losses._sent) == 1


def test_a_suspect_that_has_ended_leaves_nothing():
    losses, large = MessageLosses(), message()
    losses.note_sent(large)
    losses.note_loss(by_transport=True)

    losses.forget(large.requests[0].sequence.request_id)
    losses.begin(is_another_engine=False)

    assert not losses._num_losses
