"""DetokenizerClient: the one Detokenize stream: ids of a whole engine step out in one message, text deltas back in one.

A handle is opened by the first message that names it on the present stream. So after a tokenizer is lost nothing special
happens: the new stream has no open handles, and the next message opens them with the ids so far. One event loop.
"""

import asyncio
from dataclasses import dataclass

import grpc

from tetrad.frontend.backoff import Backoff
from tetrad.frontend.sequence import Sequence
from tetrad.services.columns import pack_u32, unpack_u32
from tetrad.services.errors import TetradError, Unavailable, from_rpc_error, from_status
from tetrad.services.log import get_logger
from tetrad.v1 import tokenizer_pb2, tokenizer_pb2_grpc

log = get_logger()

_BROKEN = (grpc.aio.AioRpcError, asyncio.InvalidStateError, ConnectionError)


@dataclass(frozen=True, slots=True)
class Row:
    """Tokens of one sequence whose text is wanted as one delta. A sequence may have several rows in a message."""

    sequence: Sequence
    token_ids: list[int]


class DetokenizerClient:
    """The stream.

    Args:
        channel: to the tokenizer; owned by the caller.
        target: for messages.
        recovery_timeout_s: how long a step waits for a tokenizer that is lost.
    """

    def __init__(self, channel: grpc.aio.Channel, target: str, *, recovery_timeout_s: float) -> None:
        self._stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        self._target = target
        self._timeout_s = recovery_timeout_s
        self._call: grpc.aio.StreamStreamCall | None = None
        self._connected = asyncio.Event()
        self._answer: asyncio.Future[tokenizer_pb2.DetokenizeResponse] | None = None
        # One exchange at a time: guards _answer and the order of messages when several engines share the stream.
        self._turn = asyncio.Lock()
        self._open: set[int] = set()
        self._to_close: list[int] = []
        self._task: asyncio.Task[None] | None = None
        self.num_messages = 0

    @property
    def connected(self) -> bool:
        """Whether the tokenizer answers."""
        return self._connected.is_set()

    async def start(self, timeout_s: float) -> None:
        """Open the stream; Unavailable if there is none after `timeout_s`."""
        self._task = asyncio.create_task(self._run(), name="detokenize stream")
        await self._wait_connected(timeout_s)

    async def close(self) -> None:
        """End the stream."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def forget(self, handle: int) -> None:
        """Close a handle with the next message."""
        if handle in self._open:
            self._open.discard(handle)
            self._to_close.append(handle)

    async def append(self, rows: list[Row], final_handles: list[int]) -> list[str | TetradError]:
        """Return one delta per row, or why there is none.

        Args:
            rows: this step's tokens; their sequences do not hold them yet.
            final_handles: handles that end with this step: held-back bytes are flushed.

        Raises:
            Unavailable: no tokenizer within `recovery_timeout_s`.
        """
        async with self._turn:
            while True:
                await self._wait_connected(self._timeout_s)
                message = self._message(rows, final_handles)
                self.num_messages += 1
                try:
                    response = await self._exchange(message)
                except _BROKEN:
                    self._on_lost("a step was not answered")
                    continue
                return _deltas(rows, response)

    async def _exchange(self, message: tokenizer_pb2.DetokenizeRequest) -> tokenizer_pb2.DetokenizeResponse:
        call = self._call
        if call is None:
            raise ConnectionError
        self._answer = asyncio.get_running_loop().create_future()
        try:
            await call.write(message)
            async with asyncio.timeout(self._timeout_s):
                return await self._answer
        except TimeoutError:
            call.cancel()
            raise ConnectionError from None
        finally:
            self._answer = None

    def _message(self, rows: list[Row], final_handles: list[int]) -> tokenizer_pb2.DetokenizeRequest:
        opens = []
        for row in rows:
            if row.sequence.handle not in self._open:
                self._open.add(row.sequence.handle)
                opens.append(_open(row.sequence))
        append = tokenizer_pb2.DetokenizeAppend(
            handles=pack_u32([row.sequence.handle for row in rows]),
            num_tokens=pack_u32([len(row.token_ids) for row in rows]),
            token_ids=pack_u32([token_id for row in rows for token_id in row.token_ids]),
            final_handles=pack_u32(final_handles),
        )
        closed, self._to_close = self._to_close, []
        return tokenizer_pb2.DetokenizeRequest(open=opens, append=append, close=pack_u32(closed))

    async def _wait_connected(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._connected.wait()
        except TimeoutError:
            text = f"The tokenizer at {self._target} has been away for more than {timeout_s:g} s; try again later."
            raise Unavailable(text, retry_after_s=timeout_s) from None

    async def _run(self) -> None:
        backoff = Backoff()
        while True:
            try:
                await self._serve(backoff)
                self._on_lost("the stream ended")
            except _BROKEN as error:
                self._on_lost(str(from_rpc_error(error)) if isinstance(error, grpc.aio.AioRpcError) else str(error))
            await backoff.wait()

    async def _serve(self, backoff: Backoff) -> None:
        """Run one stream until it breaks."""
        call = self._stub.Detokenize(wait_for_ready=True)
        try:
            # An empty step is answered like any other: the sign that a tokenizer listens.
            await call.write(tokenizer_pb2.DetokenizeRequest(append=tokenizer_pb2.DetokenizeAppend()))
            if await call.read() is grpc.aio.EOF:
                return
            self._call = call
            self._open, self._to_close = set(), []
            self._connected.set()
            backoff.reset()
            log.info("tokenizer.connected", target=self._target)
            while (response := await call.read()) is not grpc.aio.EOF:
                if self._answer is not None and not self._answer.done():
                    self._answer.set_result(response)
        except asyncio.CancelledError:
            # Reading a call that _exchange gave up on looks like this, too.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise ConnectionError("the tokenizer did not answer") from None
        finally:
            call.cancel()

    def _on_lost(self, reason: str) -> None:
        if self.connected:
            log.warning("tokenizer.lost", target=self._target, reason=reason)
        self._connected.clear()
        self._call = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(reason))


def _open(sequence: Sequence) -> tokenizer_pb2.DetokenizeOpen:
    return tokenizer_pb2.DetokenizeOpen(
        handle=sequence.handle,
        context_token_ids=pack_u32(sequence.context_token_ids()),
        num_generated=len(sequence.output_token_ids),
        num_chars_emitted=sequence.num_raw_chars,
        skip_special_tokens=sequence.params.skip_special_tokens,
        spaces_between_special_tokens=sequence.params.spaces_between_special_tokens,
    )


def _deltas(rows: list[Row], response: tokenizer_pb2.DetokenizeResponse) -> list[str | TetradError]:
    """Match deltas to rows: both are in the order of the Append, failed handles are left out of the response."""
    failures = {failure.handle: from_status(failure.status) for failure in response.failures}
    answered = iter(zip(unpack_u32(response.handles), response.deltas, strict=True))
    present = next(answered, None)
    deltas: list[str | TetradError] = []
    for row in rows:
        handle = row.sequence.handle
        if present is not None and present[0] == handle:
            delta = present[1]
            present = next(answered, None)
            # A handle that fails may still stand in its row, with an empty delta.
            deltas.append(failures.get(handle, delta))
        else:
            deltas.append(failures.get(handle) or Unavailable(f"The tokenizer left out request {row.sequence.request_id}."))
    return deltas
