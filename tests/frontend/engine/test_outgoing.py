"""Messages to an engine core: requests that arrive together share one."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from tetrad.frontend.engine.client_outgoing import EngineOutgoing
from tetrad.frontend.engine.client_sequence import ActiveSequence, SharedParams
from tetrad.frontend.net import batching as bursts
from tetrad.v1 import engine_core_pb2, types_pb2


@pytest.fixture
def patient(monkeypatch):
    """On a machine that stops for a while, too, a burst is one."""
    monkeypatch.setattr(bursts, "_LONGEST_S", 60.0)


class FakeSession:
    """Notes what it is to send, message by message."""

    shares_params = True
    max_message_bytes = 32 << 20

    def __init__(self):
        self.sent = []
        self.has_sent = asyncio.Event()

    async def send(self, message):
        self.sent.append(([request.request_id for request in message.add.requests], list(message.abort.request_ids)))
        self.has_sent.set()


@asynccontextmanager
async def writing(outgoing):
    """A session that is told what there is, whenever there is something."""
    session = FakeSession()
    writer = asyncio.create_task(outgoing.write(session))
    try:
        yield session
    finally:
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)


def make_outgoing():
    return EngineOutgoing(lambda message: None, lambda request, limit: None)


def add(outgoing, request_id):
    sequence = SimpleNamespace(request_id=request_id, output_token_ids=[], deadline=None)
    request = engine_core_pb2.EngineCoreRequest(request_id=request_id)
    params = SharedParams(types_pb2.SamplingParams(), 0)
    outgoing.add([ActiveSequence(sequence, None, None, request, b"", params, request.ByteSize())])


async def test_requests_that_come_turn_by_turn_of_the_loop_go_together(patient):
    outgoing = make_outgoing()
    async with writing(outgoing) as session:
        for number in range(5):
            add(outgoing, f"r{number}")
            await asyncio.sleep(0)
        await session.has_sent.wait()

    assert session.sent == [(["r0", "r1", "r2", "r3", "r4"], [])]


async def test_a_request_that_comes_alone_goes_when_nothing_else_is_ready():
    outgoing = make_outgoing()
    async with writing(outgoing) as session:
        for request_id in ("r0", "r1"):
            session.has_sent.clear()
            add(outgoing, request_id)
            await session.has_sent.wait()

    assert session.sent == [(["r0"], []), (["r1"], [])]


async def test_a_burst_without_an_end_goes_piece_by_piece(monkeypatch):
    monkeypatch.setattr(bursts, "_LONGEST_S", 0.0)
    outgoing = make_outgoing()
    async with writing(outgoing) as session:
        for number in range(20):
            add(outgoing, f"r{number}")
            await asyncio.sleep(0)
        while sum(len(adds) for adds, _ in session.sent) < 20:
            session.has_sent.clear()
            await session.has_sent.wait()

    assert len(session.sent) > 1
    assert [request_id for adds, _ in session.sent for request_id in adds] == [f"r{number}" for number in range(20)]


async def test_an_abort_waits_for_nobody_where_no_request_comes():
    outgoing = make_outgoing()
    async with writing(outgoing) as session:
        outgoing.abort("r0")
        await asyncio.sleep(0)
        await asyncio.sleep(0)

        assert session.sent == [([], ["r0"])]


async def test_a_request_that_is_given_up_within_its_burst_is_never_told_of():
    outgoing = make_outgoing()
    async with writing(outgoing) as session:
        add(outgoing, "r0")
        add(outgoing, "r1")
        await asyncio.sleep(0)
        outgoing.abort("r0")
        await session.has_sent.wait()

    assert session.sent == [(["r1"], [])]


async def test_aborts_of_many_long_ids_take_several_messages():
    outgoing = make_outgoing()
    ids = [f"{number}{'x' * 60_000}" for number in range(40)]
    async with writing(outgoing) as session:
        for request_id in ids:
            outgoing.abort(request_id)
        while sum(len(aborts) for _, aborts in session.sent) < len(ids):
            session.has_sent.clear()
            await session.has_sent.wait()

    assert [request_id for _, aborts in session.sent for request_id in aborts] == ids
    assert all(sum(map(len, aborts)) < 1 << 20 for _, aborts in session.sent)
