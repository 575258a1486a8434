"""EngineSession: runs one Session stream to an engine core, from Hello to its end. Checks every message against the contract.

Called by the engine client, which opens another session when this one breaks. Converts messages to values. A sequence's output
that violates the contract becomes an OddOutput, which ends only that sequence's request. A message that precedes Ready, cannot
be decoded, has inconsistent columns or repeats a step raises ProtocolError; the caller ends the session. Knows no requests.

A task of the inbox reads the session in advance, and merges all waiting steps. A frontend that is slower than the engine core
then handles each request's tokens of several steps at once and catches up. When the inbox is full, the engine core merges
steps.
"""

import asyncio
import os
import socket
from collections import deque
from dataclasses import dataclass

import grpc

from tetrad.frontend.engine.facts import EngineInfo
from tetrad.frontend.engine.facts_wire import decode_engine_info
from tetrad.frontend.engine.link import SessionCall
from tetrad.frontend.engine.wire import decode_step
from tetrad.frontend.net.logged_count import LoggedCount
from tetrad.frontend.request.steps import OddOutput, RichUpdate, Step
from tetrad.services.errors import InternalError, InvalidRequest, TetradError, Unavailable
from tetrad.services.rpc.channel import is_call_closed
from tetrad.services.rpc.status import from_rpc_error, from_status, has_details
from tetrad.services.timers.running_time import running_timeout
from tetrad.services.version import CONTRACT_REVISION, SCHEMA_REVISION
from tetrad.v1 import engine_core_pb2

# An engine core answers Hello at once; one that is connected but does not answer counts as lost.
_READY_TIMEOUT_S = 10.0


_CAPACITY = 64
"""Maximum number of messages that are read in advance."""

_OF_TRANSPORT = (grpc.StatusCode.INTERNAL, grpc.StatusCode.RESOURCE_EXHAUSTED)


class ProtocolError(InternalError):
    """The peer violated the contract; later messages on this stream cannot be trusted."""

    reason = "PROTOCOL_ERROR"


class TransportError(InternalError):
    """gRPC or a proxy ended the stream with INTERNAL or RESOURCE_EXHAUSTED, for example because of a too large message.

    The error does not name the message. Also, a write on a broken stream reports INTERNAL for any cause.
    """

    reason = "TRANSPORT_ERROR"


@dataclass(frozen=True, slots=True)
class Rejection:
    """A request that the engine core refused."""

    request_id: str
    error: TetradError


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice that concerns all requests; `kind` is a name of EngineNoticeKind without the prefix."""

    kind: str
    text: str


Received = Step | Rejection | Notice


class EngineSession:
    """One session.

    Args:
        call: the stream to the engine core.
        max_message_bytes: size of the largest message that this frontend reads and writes.

    Attributes:
        max_message_bytes: the smaller of this frontend's and the engine core's limit.
        shares_params: whether the engine core supports sampling parameters that several requests of a message share.
    """

    def __init__(self, call: SessionCall, max_message_bytes: int) -> None:
        self._call = call
        self.max_message_bytes = max_message_bytes
        self.shares_params = False
        self._vocab_size = 0
        self._last_step_id = -1
        self._odd = LoggedCount("engine.odd_output")

    async def open(self) -> EngineInfo:
        """Send Hello once connected, and return the engine core's description of itself.

        Raises:
            FailedPrecondition: the engine core has another revision of the contract.
            Unavailable: the engine core is lost, starting or draining, or does not answer.
            ProtocolError: the answer is not Ready.
        """
        await self.send(engine_core_pb2.SessionRequest(hello=_hello(self.max_message_bytes)))
        try:
            async with running_timeout(_READY_TIMEOUT_S):
                first = await self._read()
        except TimeoutError:
            raise Unavailable(f"It did not answer Hello within {_READY_TIMEOUT_S:g} s.") from None
        if first is None:
            raise Unavailable("It ended the stream.")
        if first.WhichOneof("message") != "ready":
            raise ProtocolError(f"Its first message is {first.WhichOneof('message')}, not ready.")
        info = decode_engine_info(first.ready)
        self._vocab_size = info.vocab_size
        self.max_message_bytes = min(self.max_message_bytes, info.max_message_bytes)
        self.shares_params = info.supports_shared_sampling_params or "shared_sampling_params" in info.capabilities
        return info

    async def receive(self) -> Step | Rejection | Notice | None:
        """Wait for the next message and return it; None when the engine ends the stream.

        Raises:
            TetradError: the stream broke; ProtocolError if a message violates the contract.
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
                return Notice(_kind_of(message.notice), message.notice.text)
        except (InvalidRequest, ValueError) as error:
            # The columns of the message are inconsistent.
            raise ProtocolError(f"A message of kind {kind} contradicts itself: {error}") from error
        raise ProtocolError(f"A message of kind {kind} has no place here.")

    async def send(self, request: engine_core_pb2.SessionRequest) -> None:
        """Send a message; TetradError if the stream broke."""
        try:
            await self._call.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise _broken(error) from error

    def cancel(self) -> None:
        """End the stream at once; a pending read raises Unavailable."""
        self._call.cancel()

    def _checked(self, outputs: engine_core_pb2.EngineCoreOutputs) -> Step:
        step = decode_step(outputs)
        # Tokens of a step are sent once. Outputs of requests that end between two steps have the number of the earlier step.
        if outputs.step_id < self._last_step_id or (outputs.decode.handles and outputs.step_id == self._last_step_id):
            raise ProtocolError(f"Outputs of step {outputs.step_id} came after those of step {self._last_step_id}.")
        self._last_step_id = outputs.step_id
        for place, (handle, ids, rich) in enumerate(step.updates):
            if self._vocab_size and ids and max(ids) >= self._vocab_size:
                error = OddOutput(f"The engine core's token {max(ids)} is outside the vocabulary of {self._vocab_size}.")
            elif rich is not None and rich.logprobs is not None and len(rich.logprobs.ranks) != len(ids):
                error = OddOutput(f"The engine core's {len(ids)} tokens have {len(rich.logprobs.ranks)} log-probabilities.")
            elif rich is not None and isinstance(rich.error, OddOutput):
                error = rich.error
            else:
                continue
            step.updates[place] = (handle, [], RichUpdate(error=error))
            self._odd.add(handle=handle, error=error.message)
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
            raise ProtocolError("A message cannot be decoded.")  # gRPC returns None for such a message
        return response


def _broken(error: grpc.aio.AioRpcError | asyncio.InvalidStateError) -> TetradError:
    if not isinstance(error, grpc.aio.AioRpcError):
        return Unavailable(str(error))
    if error.code() in _OF_TRANSPORT and not has_details(error):
        return TransportError(f"{error.code().name}: {error.details()}")
    return from_rpc_error(error)


def _kind_of(notice: engine_core_pb2.EngineNotice) -> str:
    """Return the name of a notice's kind; the number for a kind of a later release."""
    if notice.kind not in engine_core_pb2.EngineNoticeKind.values():
        return str(int(notice.kind))
    return engine_core_pb2.EngineNoticeKind.Name(notice.kind).removeprefix("ENGINE_NOTICE_KIND_")


def _hello(max_message_bytes: int) -> engine_core_pb2.SessionHello:
    client_id = f"{socket.gethostname()}-{os.getpid()}"
    return engine_core_pb2.SessionHello(
        client_id=client_id,
        schema_revision=SCHEMA_REVISION,
        contract_revision=CONTRACT_REVISION,
        max_message_bytes=max_message_bytes,
    )


class EngineInbox:
    """The messages of one session, in order.

    Args:
        session: an open session; nothing else may read it.
    """

    def __init__(self, session: EngineSession) -> None:
        self._session = session
        self._messages: deque[Received] = deque()
        self._changed = asyncio.Event()
        self._has_room = asyncio.Event()
        self._reader = asyncio.create_task(self._read(), name="engine reader")
        self._reader.add_done_callback(lambda _: self._changed.set())

    async def take(self) -> Received | None:
        """Wait for the next message and return it; None when the engine has ended the stream.

        Raises:
            TetradError: the stream broke; all earlier messages have been returned before.
        """
        while not self._messages:
            if self._reader.done():
                return self._reader.result()
            self._changed.clear()
            await self._changed.wait()
        first = self._messages.popleft()
        while isinstance(first, Step) and self._messages:
            following = self._messages[0]
            if not isinstance(following, Step) or not first.try_join(following):
                break
            self._messages.popleft()
        self._has_room.set()
        return first

    async def close(self) -> None:
        """Stop reading."""
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        while (message := await self._session.receive()) is not None:
            self._messages.append(message)
            self._changed.set()
            if len(self._messages) >= _CAPACITY:
                self._has_room.clear()
                await self._has_room.wait()
