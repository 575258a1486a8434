"""EngineCoreService: serves one Session stream per frontend."""

import asyncio
from collections.abc import AsyncIterator

import grpc

from tetrad.engine_core_svc.api.servicer_adds import Adds
from tetrad.engine_core_svc.api.weights_wire import with_weights
from tetrad.engine_core_svc.api.wire import encode_message
from tetrad.engine_core_svc.engine.engine import Engine
from tetrad.engine_core_svc.sessions import sessions
from tetrad.engine_core_svc.sessions.outbox import Message
from tetrad.services.errors import FailedPrecondition, InvalidRequest, Unavailable
from tetrad.services.log import get_logger
from tetrad.services.message_size import DEFAULT_MAX_MESSAGE_BYTES
from tetrad.services.version import SCHEMA_REVISION
from tetrad.v1 import engine_core_pb2, engine_core_pb2_grpc

log = get_logger()

_HELLO_TIMEOUT_S = 10.0
_START_PATIENCE_S = 5.0
"""Seconds that a session waits for the start; less than a frontend waits for the answer to its hello."""


class EngineCoreServicer(engine_core_pb2_grpc.EngineCoreServiceServicer):
    """Serves sessions once `attach` was called. Sessions that open before it wait, and then fail with UNAVAILABLE.

    Args:
        start_patience_s: seconds that they wait. A refused frontend would try again later than it could be served.
    """

    def __init__(self, *, start_patience_s: float = _START_PATIENCE_S) -> None:
        self._start_patience_s = start_patience_s
        self._attached = asyncio.Event()
        self._engine: Engine | None = None
        self._info = engine_core_pb2.EngineInfo()

    def attach(self, engine: Engine, info: engine_core_pb2.EngineInfo) -> None:
        """Start to serve `engine`, whose description is `info`."""
        self._engine, self._info = engine, info
        self._attached.set()

    async def Session(
        self, request_iterator: AsyncIterator[engine_core_pb2.SessionRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[engine_core_pb2.SessionResponse]:
        """Run one frontend's session until either side ends it."""
        hello = await _shake_hands(request_iterator)
        engine = await self._started_engine()
        log.info("session.opened", client_id=hello.client_id, contract_revision=hello.contract_revision)
        session = engine.open_session(hello.client_id)
        most_bytes = self._most_bytes(hello)
        reader = asyncio.create_task(self._read(engine, session, request_iterator))
        try:
            yield engine_core_pb2.SessionResponse(ready=with_weights(self._info, engine.weight_updates))
            while (message := await session.outbox.get()) is not None:
                rest: Message | None = message
                while rest is not None:
                    response, rest = encode_message(rest, self._info.engine_index, most_bytes)
                    yield response
            if reader.done():
                reader.result()  # raise the error that ended the session, if there is one
        finally:
            reader.cancel()
            engine.close_session(session)

    def _most_bytes(self, hello: engine_core_pb2.SessionHello) -> int:
        """Return the maximum bytes of a message to this client."""
        limits = [
            each.max_message_bytes if each.HasField("max_message_bytes") else DEFAULT_MAX_MESSAGE_BYTES
            for each in (hello, self._info)
        ]
        return min(limits)

    async def _started_engine(self) -> Engine:
        try:
            async with asyncio.timeout(self._start_patience_s):
                await self._attached.wait()
        except TimeoutError:
            raise Unavailable("The engine core is starting.", reason="STARTING", retry_after_s=0.5) from None
        assert self._engine is not None
        return self._engine

    async def _read(
        self, engine: Engine, session: sessions.Session, requests: AsyncIterator[engine_core_pb2.SessionRequest]
    ) -> None:
        """Pass a session's messages to the engine in order; end the session when the client ends its side of the stream."""
        try:
            async with asyncio.TaskGroup() as tasks:
                adds = Adds(engine, session, tasks)
                async for message in requests:
                    kind = message.WhichOneof("message")
                    if kind == "add":
                        await adds.add(message.add)
                    elif kind == "abort":
                        adds.abort(message.abort.request_ids)
                    else:
                        raise InvalidRequest("After the hello, every message of a session adds or aborts requests.")
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            session.outbox.close()


async def _shake_hands(requests: AsyncIterator[engine_core_pb2.SessionRequest]) -> engine_core_pb2.SessionHello:
    try:
        async with asyncio.timeout(_HELLO_TIMEOUT_S):
            first = await anext(requests, None)
    except TimeoutError:
        raise InvalidRequest(f"No hello came within {_HELLO_TIMEOUT_S:g} s.", field="hello") from None
    if first is None or not first.HasField("hello"):
        raise InvalidRequest("The first message of a session must be hello.", field="hello")
    if first.hello.schema_revision != SCHEMA_REVISION:
        raise FailedPrecondition(
            f"The client speaks schema revision {first.hello.schema_revision}, this engine core {SCHEMA_REVISION}.",
            reason="SCHEMA_REVISION",
        )
    return first.hello
