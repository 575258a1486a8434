"""EngineSession: one Session stream to an engine core, from Hello to its end. Believes nothing that breaks the contract.

Called by the engine client, which opens another one when this one breaks. Turns messages into values and checks them: what
comes before Ready, cannot be decoded, contradicts itself or comes twice raises ProtocolError, and the session is to be given
up. Knows no requests.
"""

import asyncio
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass

import grpc

from tetrad.frontend.facts import EngineInfo
from tetrad.frontend.steps import Step
from tetrad.frontend.wire import engine_info_of, step_of
from tetrad.services.channel import is_call_closed
from tetrad.services.errors import InternalError, InvalidRequest, TetradError, Unavailable
from tetrad.services.status import from_rpc_error, from_status
from tetrad.services.version import SCHEMA_REVISION
from tetrad.v1 import engine_core_pb2, engine_core_pb2_grpc

# AddRequests messages are cut at this size: a thousand long prompts must not exceed the channel's limit.
_MAX_ADD_BYTES = 4 << 20
# An engine that listens answers Hello at once; one that is connected and mute is taken for lost.
_READY_TIMEOUT_S = 10.0


class ProtocolError(InternalError):
    """The peer broke the contract; nothing that it says later on this stream can be believed."""

    reason = "PROTOCOL_ERROR"


@dataclass(frozen=True, slots=True)
class Rejection:
    """A request that the engine did not take."""

    request_id: str
    error: TetradError


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that concerns every request; `kind` as in EngineNoticeKind, without the prefix."""

    kind: str
    text: str


class EngineSession:
    """One stream.

    Args:
        stub: of the engine core.
    """

    def __init__(self, stub: engine_core_pb2_grpc.EngineCoreServiceStub) -> None:
        self._call = stub.Session(wait_for_ready=True)
        self._vocab_size = 0
        self._last_step_id = -1

    async def open(self) -> EngineInfo:
        """Say Hello, as soon as there is somebody, and return what the engine says of itself.

        Raises:
            FailedPrecondition: it speaks another revision of the contract.
            Unavailable: it is lost, starting or draining, or does not answer.
            ProtocolError: it answers something else.
        """
        await self._write(engine_core_pb2.SessionRequest(hello=_hello()))
        try:
            async with asyncio.timeout(_READY_TIMEOUT_S):
                first = await self._read()
        except TimeoutError:
            raise Unavailable(f"It did not answer Hello within {_READY_TIMEOUT_S:g} s.") from None
        if first is None:
            raise Unavailable("It ended the stream.")
        if first.WhichOneof("message") != "ready":
            raise ProtocolError(f"Its first message is {first.WhichOneof('message')}, not ready.")
        info = engine_info_of(first.ready)
        self._vocab_size = info.vocab_size
        return info

    async def receive(self) -> Step | Rejection | Notice | None:
        """Return what comes next; None when the engine ends the stream.

        Raises:
            TetradError: the stream broke; ProtocolError if its messages break the contract.
        """
        message = await self._read()
        if message is None:
            return None
        kind = message.WhichOneof("message")
        try:
            if kind == "outputs":
                return self._checked(message.outputs)
            if kind == "rejected":
                return Rejection(message.rejected.request_id, from_status(message.rejected.status))
            if kind == "notice":
                name = engine_core_pb2.EngineNoticeKind.Name(message.notice.kind)
                return Notice(name.removeprefix("ENGINE_NOTICE_KIND_"), message.notice.text)
        except (InvalidRequest, ValueError) as error:
            # Columns that disagree, numbers that no enum has.
            raise ProtocolError(f"A message of kind {kind} contradicts itself: {error}") from error
        raise ProtocolError(f"A message of kind {kind} has no place here.")

    async def send(self, adds: Iterable[engine_core_pb2.EngineCoreRequest], abort_ids: list[str]) -> None:
        """Send requests and aborts. TetradError if the stream broke."""
        for batch in _batches(adds):
            await self._write(engine_core_pb2.SessionRequest(add=engine_core_pb2.AddRequests(requests=batch)))
        if abort_ids:
            await self._write(engine_core_pb2.SessionRequest(abort=engine_core_pb2.AbortRequests(request_ids=abort_ids)))

    def cancel(self) -> None:
        """End the stream at once; a read under way raises Unavailable."""
        self._call.cancel()

    def _checked(self, outputs: engine_core_pb2.EngineCoreOutputs) -> Step:
        step = step_of(outputs)
        # Tokens of one step come once; what ends between two steps bears the number of the one before.
        if outputs.step_id < self._last_step_id or (outputs.decode.handles and outputs.step_id == self._last_step_id):
            raise ProtocolError(f"Outputs of step {outputs.step_id} came after those of step {self._last_step_id}.")
        self._last_step_id = outputs.step_id
        for handle, ids, rich in step.updates:
            if self._vocab_size and ids and max(ids) >= self._vocab_size:
                raise ProtocolError(f"Token {max(ids)} of handle {handle} is outside the vocabulary of {self._vocab_size}.")
            if rich is not None and rich.logprobs is not None and len(rich.logprobs.ranks) != len(ids):
                raise ProtocolError(f"{len(ids)} tokens of handle {handle} have {len(rich.logprobs.ranks)} log-probabilities.")
        return step

    async def _read(self) -> engine_core_pb2.SessionResponse | None:
        try:
            response = await self._call.read()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise _broken(error) from error
        except asyncio.CancelledError as error:
            if not is_call_closed(error):
                raise
            raise Unavailable("The stream was given up.") from None
        if response is grpc.aio.EOF:
            return None
        if not isinstance(response, engine_core_pb2.SessionResponse):
            raise ProtocolError("A message cannot be decoded.")  # gRPC gives None for it
        return response

    async def _write(self, request: engine_core_pb2.SessionRequest) -> None:
        try:
            await self._call.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise _broken(error) from error


def _broken(error: grpc.aio.AioRpcError | asyncio.InvalidStateError) -> TetradError:
    return from_rpc_error(error) if isinstance(error, grpc.aio.AioRpcError) else Unavailable(str(error))


def _hello() -> engine_core_pb2.SessionHello:
    return engine_core_pb2.SessionHello(client_id=f"{socket.gethostname()}-{os.getpid()}", schema_revision=SCHEMA_REVISION)


def _batches(
    requests: Iterable[engine_core_pb2.EngineCoreRequest],
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
