"""How the requests of a session's messages are queued: large calls in turns, others before the next message is read."""

import asyncio
from collections.abc import Iterator

import pytest

from tetrad.engine_core_svc.api import servicer
from tetrad.engine_core_svc.api.servicer import Adds
from tetrad.engine_core_svc.sessions.sessions import Session
from tetrad.services.timers.time_slice import TimeSlice
from tetrad.v1 import engine_core_pb2 as pb
from tetrad.v1 import types_pb2


class FakeEngine:
    """Notes what a session adds and aborts."""

    def __init__(self) -> None:
        self.arrivals = self
        self.added: list[str] = []
        self.aborted: list[str] = []

    def add(self, session, submission):
        self.added.append(submission.request_id)

    def reject(self, session, request_id, error):
        raise error

    def abort_requests(self, session, request_ids):
        self.aborted += request_ids


def request(name, call=0, arrival=0):
    params = types_pb2.SamplingParams(max_tokens=1)
    prompt = (1).to_bytes(4, "little")
    return pb.EngineCoreRequest(
        request_id=name,
        handle=hash(name) & 0xFFFF,
        prompt_token_ids=prompt,
        sampling_params=params,
        call_number=call,
        arrival_time_unix_nanos=arrival,
    )


def message(*requests):
    return pb.AddRequests(requests=requests)


def call(number, size):
    return [request(f"{number}-{index}", number) for index in range(size)]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(autouse=True)
def slices(engine, monkeypatch) -> Iterator[None]:
    """Let a slice end after each request."""
    monkeypatch.setattr(servicer, "TimeSlice", lambda: TimeSlice(lambda: len(engine.added)))
    return


async def test_requests_of_a_message_are_added_in_the_order_of_their_arrival(engine):
    async with asyncio.TaskGroup() as tasks:
        await Adds(engine, Session(1, "test"), tasks).add(message(request("b", arrival=2), request("a", arrival=1)))

        assert engine.added == ["a", "b"]


async def test_a_later_message_does_not_wait_for_a_large_call(engine):
    async with asyncio.TaskGroup() as tasks:
        queue = Adds(engine, Session(1, "test"), tasks)
        await queue.add(message(*call(7, 100)))
        await queue.add(message(request("other")))

        assert engine.added.index("other") <= 2
    assert len(engine.added) == 101


async def test_other_calls_in_the_message_of_a_large_call_are_added_first(engine):
    async with asyncio.TaskGroup() as tasks:
        queue = Adds(engine, Session(1, "test"), tasks)
        await queue.add(message(*call(7, 100), *call(8, 3), request("other", arrival=9)))

        assert engine.added == ["8-0", "8-1", "8-2", "other"]
    assert engine.added[4:] == [f"7-{index}" for index in range(100)]


async def test_an_aborted_request_that_is_not_added_yet_is_never_added(engine):
    async with asyncio.TaskGroup() as tasks:
        queue = Adds(engine, Session(1, "test"), tasks)
        await queue.add(message(*call(7, 100)))
        queue.abort(["7-50", "unknown"])

    assert "7-50" not in engine.added
    assert engine.aborted == ["unknown"]
    assert len(engine.added) == 99


async def test_an_aborted_request_can_be_sent_again(engine):
    async with asyncio.TaskGroup() as tasks:
        queue = Adds(engine, Session(1, "test"), tasks)
        await queue.add(message(*call(7, 100)))
        queue.abort(["7-50"])
        await queue.add(message(request("7-50")))

    assert engine.added.count("7-50") == 1


async def test_no_further_message_is_read_while_too_much_is_pending(engine, monkeypatch):
    monkeypatch.setattr(servicer, "_MOST_PENDING_BYTES", 100)
    async with asyncio.TaskGroup() as tasks:
        queue = Adds(engine, Session(1, "test"), tasks)
        await queue.add(message(*call(7, 100)))

        assert len(engine.added) == 100


async def test_a_message_with_many_calls_leaves_others_their_turns(engine):
    turns = []

    async def take_turns():
        while True:
            turns.append(len(engine.added))
            await asyncio.sleep(0)

    other = asyncio.create_task(take_turns())
    async with asyncio.TaskGroup() as tasks:
        await Adds(engine, Session(1, "test"), tasks).add(message(*(request(f"r{index}") for index in range(1000))))

    other.cancel()
    assert len(engine.added) == 1000
    assert len(set(turns)) > 300
