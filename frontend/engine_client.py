"""EngineClient: the long-lived Session stream to one engine core.

Owns the connection and the list of requests that must survive it: when the stream breaks it is opened again, with back-off,
and every unfinished request is added again behind the tokens that exist. After `recovery_timeout_s` without an engine they
fail with Unavailable. Requests and aborts of one loop tick travel in one message each. One event loop; knows no text.
"""

import asyncio
import os
import socket
from collections.abc import Iterable
from typing import Protocol

import grpc

from tetrad.frontend.backoff import Backoff
from tetrad.frontend.facts import EngineInfo
from tetrad.frontend.sequence import Sequence
from tetrad.frontend.steps import Step
from tetrad.frontend.wire import engine_info_of, resume, step_of
from tetrad.services.channel import open_channel, problem_of
from tetrad.services.errors import FailedPrecondition, TetradError, Unavailable, from_rpc_error, from_status
from tetrad.services.log import get_logger
from tetrad.services.tls import TlsFiles
from tetrad.services.version import SCHEMA_REVISION
from tetrad.v1 import engine_core_pb2, engine_core_pb2_grpc

log = get_logger()

# AddRequests messages are cut at this size: a thousand long prompts must not exceed the channel's limit.
_MAX_ADD_BYTES = 4 << 20


class StepSink(Protocol):
    """What takes an engine's outputs."""

    async def process(self, step: Step) -> None:
        """Take one step's outputs; the next is read when this returns."""

    def fail(self, sequence: Sequence, error: TetradError) -> None:
        """End a sequence with an error."""


class EngineClient:
    """One session.

    Args:
        target: address of the engine core.
        sink: takes outputs and failures.
        recovery_timeout_s: how long requests wait for an engine that is lost.
        max_message_bytes: largest message.
        tls: identity of this process; None: the connection is plain.
    """

    def __init__(
        self, target: str, sink: StepSink, *, recovery_timeout_s: float, max_message_bytes: int, tls: TlsFiles | None = None
    ) -> None:
        self.target = target
        self._sink = sink
        self._recovery_timeout_s = recovery_timeout_s
        self.channel = open_channel(target, max_message_bytes=max_message_bytes, tls=tls)
        self._stub = engine_core_pb2_grpc.EngineCoreServiceStub(self.channel)
        self._unfinished: dict[str, tuple[Sequence, engine_core_pb2.EngineCoreRequest]] = {}
        self._adds: dict[str, engine_core_pb2.EngineCoreRequest] = {}
        self._aborts: list[str] = []
        self._has_outgoing = asyncio.Event()
        self._ready = asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._lost_reason: TetradError | None = None
        self.info: EngineInfo | None = None
        self.num_add_messages = 0
        self.num_sessions = 0

    @property
    def connected(self) -> bool:
        """Whether a session is open."""
        return self._ready.is_set()

    @property
    def num_unfinished(self) -> int:
        """Sequences this engine is to bring to an end."""
        return len(self._unfinished)

    async def start(self, timeout_s: float) -> EngineInfo:
        """Open the session; Unavailable if there is none after `timeout_s`, FailedPrecondition if it can never be."""
        self._task = asyncio.create_task(self._run(), name=f"engine session {self.target}")
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait({ready, self._task}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if self._task.done():
            self._task.result()
        if self.info is None or not self.connected:
            why = problem_of(self.channel) or self._lost_reason
            reason = f" ({why})" if why else ""
            raise Unavailable(f"The engine core at {self.target} was not ready within {timeout_s:g} s{reason}.")
        return self.info

    def add(self, sequence: Sequence, request: engine_core_pb2.EngineCoreRequest) -> None:
        """Send a request with the others of this loop tick; Unavailable if the engine has been away for too long."""
        if not self.connected and self._expiry is None:
            raise self._unavailable()
        self._unfinished[sequence.request_id] = (sequence, request)
        if self.connected:
            self._adds[sequence.request_id] = request
            self._has_outgoing.set()

    def forget(self, request_id: str) -> None:
        """Drop a finished sequence."""
        self._unfinished.pop(request_id, None)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop sequences and tell the engine; unknown ids are ignored."""
        for request_id in request_ids:
            if self._unfinished.pop(request_id, None) is None:
                continue
            # A request that was never sent needs no abort.
            if self._adds.pop(request_id, None) is None and self.connected:
                self._aborts.append(request_id)
                self._has_outgoing.set()

    async def close(self) -> None:
        """End the session; the engine aborts what is left of it."""
        self._cancel_expiry()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.channel.close()

    async def _run(self) -> None:
        backoff = Backoff()
        while True:
            try:
                await self._serve(backoff)
                self._lost_reason = Unavailable("the stream ended")
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                is_rpc = isinstance(error, grpc.aio.AioRpcError)
                self._lost_reason = from_rpc_error(error) if is_rpc else Unavailable(str(error))
                if isinstance(self._lost_reason, FailedPrecondition):
                    # Another contract revision: trying again cannot help the requests, though a new engine may.
                    self._expire()
                    if self.info is None:
                        raise self._lost_reason from error
            except TetradError as error:
                self._lost_reason = error
            self._on_lost()
            await backoff.wait()

    async def _serve(self, backoff: Backoff) -> None:
        """Run one session until it breaks."""
        call = self._stub.Session(wait_for_ready=True)
        try:
            await call.write(_hello())
            first = await call.read()
            if first is grpc.aio.EOF:
                return
            self._on_ready(engine_info_of(first.ready))
            backoff.reset()
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(self._write(call))
                try:
                    while (response := await call.read()) is not grpc.aio.EOF:
                        await self._take(response)
                finally:
                    writer.cancel()
        except BaseExceptionGroup as group_error:
            # One cause at a time: reader and writer fail of the same broken stream.
            raise group_error.exceptions[0] from None
        finally:
            call.cancel()

    async def _take(self, response: engine_core_pb2.SessionResponse) -> None:
        kind = response.WhichOneof("message")
        if kind == "outputs":
            await self._sink.process(step_of(response.outputs))
        elif kind == "rejected":
            self._take_rejection(response.rejected.request_id, from_status(response.rejected.status))
        elif kind == "notice":
            name = engine_core_pb2.EngineNoticeKind.Name(response.notice.kind)
            log.info("engine.notice", target=self.target, kind=name, text=response.notice.text)

    def _take_rejection(self, request_id: str, error: TetradError) -> None:
        found = self._unfinished.get(request_id)
        if found is None:
            return
        if isinstance(error, Unavailable) and error.reason == "DRAINING":
            # The engine is leaving: its successor gets the request when this session breaks.
            self._start_expiry()
            return
        del self._unfinished[request_id]
        self._sink.fail(found[0], error)

    async def _write(self, call: grpc.aio.StreamStreamCall) -> None:
        while True:
            await self._has_outgoing.wait()
            self._has_outgoing.clear()
            adds, self._adds = list(self._adds.values()), {}
            aborts, self._aborts = self._aborts, []
            for batch in _batches(adds):
                self.num_add_messages += 1
                await call.write(engine_core_pb2.SessionRequest(add=engine_core_pb2.AddRequests(requests=batch)))
            if aborts:
                await call.write(engine_core_pb2.SessionRequest(abort=engine_core_pb2.AbortRequests(request_ids=aborts)))

    def _on_ready(self, info: EngineInfo) -> None:
        self._cancel_expiry()
        self.info = info
        self.num_sessions += 1
        self._aborts = []
        self._adds = {key: resume(request, sequence) for key, (sequence, request) in self._unfinished.items()}
        if self._adds:
            self._has_outgoing.set()
        self._ready.set()
        log.info("engine.connected", target=self.target, epoch=info.epoch, num_resumed=len(self._adds))

    def _on_lost(self) -> None:
        if self.connected:
            log.warning("engine.lost", target=self.target, reason=str(self._lost_reason), num_unfinished=self.num_unfinished)
            self._ready.clear()
            self._start_expiry()

    def _start_expiry(self) -> None:
        if self._expiry is None:
            self._expiry = asyncio.get_running_loop().call_later(self._recovery_timeout_s, self._expire)

    def _cancel_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def _expire(self) -> None:
        """Fail what waits; new requests are refused until an engine answers."""
        self._cancel_expiry()
        waiting, self._unfinished = list(self._unfinished.values()), {}
        for sequence, _ in waiting:
            self._sink.fail(sequence, self._unavailable())

    def _unavailable(self) -> Unavailable:
        text = f"The engine core at {self.target} has been away for more than {self._recovery_timeout_s:g} s; try again later."
        return Unavailable(text, retry_after_s=self._recovery_timeout_s)


def _hello() -> engine_core_pb2.SessionRequest:
    name = f"{socket.gethostname()}-{os.getpid()}"
    return engine_core_pb2.SessionRequest(hello=engine_core_pb2.SessionHello(client_id=name, schema_revision=SCHEMA_REVISION))


def _batches(
    requests: list[engine_core_pb2.EngineCoreRequest],
) -> Iterable[list[engine_core_pb2.EngineCoreRequest]]:
    batch: list[engine_core_pb2.EngineCoreRequest] = []
    size = 0
    for request in requests:
        request_bytes = len(request.prompt_token_ids) + len(request.resumed_output_token_ids) + 1024
        if batch and size + request_bytes > _MAX_ADD_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(request)
        size += request_bytes
    if batch:
        yield batch
