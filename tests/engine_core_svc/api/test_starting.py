"""Sessions that are opened while the engine core is still bringing its worker up."""

import asyncio

import grpc
import pytest

from tetrad.engine_core_svc.api.servicer import EngineCoreServicer
from tetrad.services.errors import Unavailable
from tetrad.services.version import SCHEMA_REVISION
from tetrad.v1 import engine_core_pb2 as pb


class FakeEngine:
    """An engine of which only sessions are wanted."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    def open_session(self, client_id):
        self.opened.set()
        raise Unavailable("Seen.", reason="SEEN")


async def hello():
    yield pb.SessionRequest(hello=pb.SessionHello(client_id="f", schema_revision=SCHEMA_REVISION))
    await asyncio.Event().wait()


async def test_a_session_that_came_early_is_opened_at_the_moment_the_engine_is_there():
    servicer, engine = EngineCoreServicer(), FakeEngine()
    session = asyncio.create_task(anext(servicer.Session(hello(), grpc.aio.ServicerContext)))
    await asyncio.sleep(0)

    servicer.attach(engine, pb.EngineInfo())

    async with asyncio.timeout(2):
        await engine.opened.wait()
    with pytest.raises(Unavailable, match="Seen"):
        await session


async def test_a_session_that_came_far_too_early_is_refused():
    servicer = EngineCoreServicer(start_patience_s=0.01)

    with pytest.raises(Unavailable, match="starting"):
        await anext(servicer.Session(hello(), grpc.aio.ServicerContext))
