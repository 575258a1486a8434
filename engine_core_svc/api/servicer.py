"""EngineCoreService: serves one Session stream per frontend, and adds the requests of its messages.

A call with many sequences delays no other call: the requests of a call with few sequences are added before the next message is
read, those of a call with a thousand by a task, while later messages are read.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import grpc

from tetrad.engine_core_svc.api.weights_wire import with_weights
from tetrad.engine_core_svc.api.wire import encode_message
from tetrad.engine_core_svc.core.media import NO_INPUTS, EncoderInput
from tetrad.engine_core_svc.core.media_wire import decode_inputs
from tetrad.engine_core_svc.engine.engine import Engine
from tetrad.engine_core_svc.engine.submission_wire import SharedSampling, decode_submission
from tetrad.engine_core_svc.sessions import sessions
from tetrad.engine_core_svc.sessions.outbox import Message
from tetrad.engine_core_svc.sessions.sessions import Session
from tetrad.services.errors import FailedPrecondition, InvalidRequest, TetradError, Unavailable
from tetrad.services.log import get_logger
from tetrad.services.message_size import DEFAULT_MAX_MESSAGE_BYTES
from tetrad.services.timers.time_slice import TimeSlice
from tetrad.services.version import SCHEMA_REVISION
from tetrad.v1 import engine_core_pb2, engine_core_pb2_grpc

log = get_logger()

_HELLO_TIMEOUT_S = 10.0
_START_PATIENCE_S = 5.0
"""Seconds that a session waits for the start; less than a frontend waits for the answer to its hello."""


_ALONE = 0
"""Call number of a request that is a call of its own."""
_MOST_AT_ONCE = 4
"""Maximum number of requests of one call that are added before the next message is read."""
_MOST_PENDING_BYTES = 64 << 20
"""Size of requests that tasks have not added yet, in bytes, from which on no further message is read."""


_Inputs = Mapping[str, EncoderInput] | TetradError
"""The media of a request, or the error of one that cannot be decoded."""


@dataclass(frozen=True)
class _LargeCalls:
    """The requests of a message that belong to large calls.

    Attributes:
        shared: the sampling parameters that they share.
        num_bytes: size of the message.
    """

    requests: Sequence[engine_core_pb2.EngineCoreRequest]
    shared: SharedSampling
    num_bytes: int


async def _decoded(request: engine_core_pb2.EngineCoreRequest) -> _Inputs:
    try:
        return await decode_inputs(request.mm_features)
    except TetradError as error:
        return error


class Adds:
    """The requests of one session that are not added yet.

    Args:
        engine: takes the requests.
        session: their session.
        tasks: the group of the task that adds the requests of large calls.
    """

    def __init__(self, engine: Engine, session: Session, tasks: asyncio.TaskGroup) -> None:
        self._engine, self._session, self._tasks = engine, session, tasks
        self._pending: dict[str, engine_core_pb2.EngineCoreRequest] = {}
        self._messages: deque[_LargeCalls] = deque()  # the pending requests, by message
        self._pending_bytes = 0
        self._has_room = asyncio.Event()

    async def add(self, message: engine_core_pb2.AddRequests) -> None:
        """Queue requests: those of large calls by a task, all others now. While the client leaves many answers unread, wait."""
        # Arrival times in a message come from one clock. Prompts are tokenized concurrently, so the message has another order.
        requests = sorted(message.requests, key=attrgetter("arrival_time_unix_nanos"))
        shared = SharedSampling(message.shared_sampling_params)
        sizes = Counter(request.call_number for request in requests)
        large, others = [], []
        for request in requests:
            is_large = request.call_number != _ALONE and sizes[request.call_number] > _MOST_AT_ONCE
            if is_large and request.request_id not in self._pending:
                self._pending[request.request_id] = request
                large.append(request)
            else:
                others.append(request)
        async for request, inputs in self._in_turns(others):
            self._add(request, shared, inputs)
        if large:
            await self._queue(_LargeCalls(large, shared, message.ByteSize()))

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests, or remove them if they are not added yet."""
        ended = [request_id for request_id in request_ids if self._pending.pop(request_id, None) is None]
        self._engine.abort_requests(self._session, ended)

    async def _queue(self, calls: _LargeCalls) -> None:
        """Let the task add requests; wait while too many are pending."""
        self._messages.append(calls)
        self._pending_bytes += calls.num_bytes
        if len(self._messages) == 1:
            self._tasks.create_task(self._add_pending())
        while self._pending_bytes > _MOST_PENDING_BYTES:
            self._has_room.clear()
            await self._has_room.wait()

    async def _add_pending(self) -> None:
        while self._messages:
            calls = self._messages[0]
            async for request, inputs in self._in_turns(calls.requests):
                if self._pending.get(request.request_id) is request:  # otherwise it is aborted
                    del self._pending[request.request_id]
                    self._add(request, calls.shared, inputs)
            self._messages.popleft()
            self._pending_bytes -= calls.num_bytes
            self._has_room.set()

    async def _in_turns(
        self, requests: Iterable[engine_core_pb2.EngineCoreRequest]
    ) -> AsyncIterator[tuple[engine_core_pb2.EngineCoreRequest, _Inputs]]:
        """Yield requests with their media in several turns of the event loop: a message may have 100,000 requests."""
        time_slice = TimeSlice()
        for request in requests:
            await self._session.outbox.wait_for_room()
            yield request, await _decoded(request) if request.mm_features else NO_INPUTS
            await time_slice.check()

    def _add(self, message: engine_core_pb2.EngineCoreRequest, shared: SharedSampling, inputs: _Inputs) -> None:
        """Queue one request; reject a request that cannot be decoded, without an effect on others."""
        try:
            if isinstance(inputs, TetradError):
                raise inputs
            submission = decode_submission(message, shared, inputs)
        except TetradError as error:
            self._engine.arrivals.reject(self._session, message.request_id, error)
            return
        self._engine.arrivals.add(self._session, submission)


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
