"""DetokenizerClient: runs the Detokenize stream: sends the ids of a whole engine step and receives their text deltas.

A step takes one message and one answer. The first message on a stream that names a handle opens it. So the loss of a tokenizer
needs no special case: the new stream, on this or another replica, has no open handles, and the next message opens them with the
ids so far. Large steps take several messages: some only open handles, and each part of the sequences has one. wire.py has the
messages. One event loop.
"""

import asyncio
from collections.abc import Iterator
from functools import partial

import grpc

from tetrad.frontend.net.backoff import Backoff
from tetrad.frontend.tokenizer.link import MessageStream
from tetrad.frontend.tokenizer.replicas import Replica, TokenizerReplicas
from tetrad.frontend.tokenizer.wire import Row, decode_deltas, encode_append, encode_open, finals_of, parts_of
from tetrad.services.errors import TetradError, Unavailable
from tetrad.services.log import get_logger
from tetrad.services.message_size import BATCH_BYTES, batches
from tetrad.services.rpc.channel import is_call_closed
from tetrad.services.rpc.columns import pack_u32
from tetrad.services.rpc.status import from_rpc_error
from tetrad.services.timers.idle_timer import IdleTimer
from tetrad.services.timers.running_time import running_timeout
from tetrad.v1 import tokenizer_pb2

log = get_logger()

_BROKEN = (grpc.aio.AioRpcError, asyncio.InvalidStateError, ConnectionError)

_MOST_OPEN_BYTES = BATCH_BYTES // 2
"""Maximum size of the opened handles in one message."""


class DetokenizerClient:
    """The Detokenize stream of one frontend.

    Args:
        replicas: the tokenizers; the stream runs on one of them. Owned by the caller.
        recovery_timeout_s: maximum seconds that a step waits for a tokenizer, in all attempts together.
        stall_s: seconds after which the stream moves to another tokenizer, if any; doubled after each consecutive move.
    """

    def __init__(self, replicas: TokenizerReplicas, *, recovery_timeout_s: float, stall_s: float) -> None:
        self._replicas = replicas
        self._timeout_s = recovery_timeout_s
        self._stall_s = self._first_stall_s = stall_s
        self._replica: Replica | None = None
        self._call: MessageStream | None = None
        self._connected = asyncio.Event()
        self._answer: asyncio.Future[tokenizer_pb2.DetokenizeResponse | None] | None = None
        self._backoff = Backoff()
        # One exchange at a time: guards _answer and the order of messages when several engines share the stream.
        self._turn = asyncio.Lock()
        self._open: set[int] = set()
        self._to_close: list[int] = []
        self._task: asyncio.Task[None] | None = None
        self.num_messages = 0
        self.num_streams = 0

    def start(self) -> None:
        """Start to open the stream, in a task."""
        self._task = asyncio.create_task(self._run(), name="detokenize stream")

    async def wait_connected(self) -> None:
        """Wait until the stream is open."""
        await self._connected.wait()

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
        """Return for each row its delta, or the error of its sequence.

        Args:
            rows: the tokens of this step; the sequences do not contain them yet.
            final_handles: handles that end with this step; their held-back bytes are flushed.

        Raises:
            Unavailable: no tokenizer answered within `recovery_timeout_s`.
        """
        async with self._turn:
            try:
                async with running_timeout(self._timeout_s):
                    deltas = [
                        delta
                        for part in parts_of(rows)
                        for delta in await self._append_part(part, finals_of(part, final_handles))
                    ]
                    self._forget_ended(rows)
                    return deltas
            except TimeoutError:
                text = f"The tokenizer at {self._replicas} has been away for more than {self._timeout_s:g} s; try again later."
                raise Unavailable(text, retry_after_s=self._timeout_s) from None

    async def _append_part(self, rows: list[Row], final_handles: list[int]) -> list[str | TetradError]:
        while True:
            await self._connected.wait()
            deltas = await self._exchange(rows, final_handles)
            if deltas is not None:
                return deltas

    async def _exchange(self, rows: list[Row], final_handles: list[int]) -> list[str | TetradError] | None:
        """Return the deltas of a step; None if the stream broke or was abandoned."""
        call, replica = self._call, self._replica
        if call is None or replica is None:
            return None
        self.num_messages += 1
        self._answer = asyncio.get_running_loop().create_future()
        patience = IdleTimer(self._stall_s, partial(self._note_stall, call))
        try:
            for message in self._messages(rows, final_handles):
                await call.write(message)
            answer = await self._answer
            if answer is None:
                return None
            deltas = decode_deltas(rows, answer)
        except _BROKEN as error:
            self._give_up(call, _reason(error))
            return None
        except ValueError as error:
            self._give_up(call, f"an answer contradicts itself: {error}")
            return None
        except BaseException as error:
            # The answer would be mistaken for that to the next message, and the tokenizer has tokens that the sequences lack.
            self._give_up(call, "a step was given up")
            if is_call_closed(error):
                return None
            raise
        finally:
            patience.stop()
            self._answer = None
        replica.suspect = False
        self._stall_s = self._first_stall_s
        self._backoff.reset()
        return deltas

    def _note_stall(self, call: MessageStream) -> None:
        """Move the stream away from a tokenizer that has not answered a step in time, if there is another one."""
        if len(self._replicas.in_order()) > 1:
            text = f"a step was not answered within {self._stall_s:g} s"
            # A step that is slow on every tokenizer must not be moved without end.
            self._stall_s *= 2
            self._give_up(call, text)

    def _forget_ended(self, rows: list[Row]) -> None:
        """Close the handles of sequences that ended while they waited for a tokenizer."""
        for row in rows:
            if row.sequence.finished:
                self.forget(row.sequence.handle)

    def _messages(self, rows: list[Row], final_handles: list[int]) -> Iterator[tokenizer_pb2.DetokenizeRequest]:
        """Yield the messages that open new handles, and then the message that has an answer."""
        opens: list[tokenizer_pb2.DetokenizeOpen] = []
        for batch in batches(self._new_handles(rows), tokenizer_pb2.DetokenizeOpen.ByteSize, _MOST_OPEN_BYTES):
            if opens:
                yield tokenizer_pb2.DetokenizeRequest(open=opens)
            opens = batch
        yield self._message(rows, final_handles, opens)

    def _message(
        self, rows: list[Row], final_handles: list[int], opens: list[tokenizer_pb2.DetokenizeOpen]
    ) -> tokenizer_pb2.DetokenizeRequest:
        closed, self._to_close = self._to_close, []
        return tokenizer_pb2.DetokenizeRequest(open=opens, append=encode_append(rows, final_handles), close=pack_u32(closed))

    def _new_handles(self, rows: list[Row]) -> Iterator[tokenizer_pb2.DetokenizeOpen]:
        for row in rows:
            if row.sequence.handle not in self._open:
                self._open.add(row.sequence.handle)
                yield encode_open(row.sequence)

    async def _run(self) -> None:
        last: Replica | None = None
        while True:
            await self._replicas.wait_usable()
            # If all are suspects, the one that has just failed is tried after the others.
            replicas = sorted(self._replicas.in_order(), key=lambda each: (each.suspect, each is last))
            if not replicas:
                continue
            last = replicas[0]
            try:
                await self._serve(last)
            except _BROKEN as error:
                self._on_lost(_reason(error))
            last.suspect = True
            # Another healthy replica is tried at once, without waiting for this one.
            if all(replica.suspect for replica in self._replicas.in_order()):
                await self._backoff.wait()

    async def _serve(self, replica: Replica) -> None:
        """Run one stream until it breaks."""
        call = replica.link.open_detokenizer()
        try:
            # An empty step is answered like any other: the answer shows that the tokenizer works.
            await call.write(tokenizer_pb2.DetokenizeRequest(append=tokenizer_pb2.DetokenizeAppend()))
            async with running_timeout(self._stall_s):
                _checked(await call.read())
            self._replica, self._call = replica, call
            self._open, self._to_close = set(), []
            self._connected.set()
            self.num_streams += 1
            log.info("detokenizer.connected", target=replica.target)
            while True:
                response = _checked(await call.read())
                if self._answer is None or self._answer.done():
                    # Later answers would be mistaken for answers to other messages.
                    raise ConnectionError("it answered what was not asked")
                self._answer.set_result(response)
        except TimeoutError:
            raise ConnectionError("it does not answer") from None
        except asyncio.CancelledError as error:
            if not is_call_closed(error):
                raise
            raise ConnectionError("a step was given up") from None
        finally:
            call.cancel()

    def _give_up(self, call: MessageStream, reason: str) -> None:
        """Cancel a stream; `_run` then opens another one."""
        call.cancel()
        if call is self._call:
            self._on_lost(reason)

    def _on_lost(self, reason: str) -> None:
        if self._connected.is_set() and self._replica is not None:
            log.warning("detokenizer.lost", target=self._replica.target, reason=reason)
        self._connected.clear()
        self._call = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)


def _checked(response: object) -> tokenizer_pb2.DetokenizeResponse:
    """Return a response; ConnectionError if the stream ended or a message could not be decoded (gRPC then returns None)."""
    if not isinstance(response, tokenizer_pb2.DetokenizeResponse):
        raise ConnectionError("the stream ended" if response is grpc.aio.EOF else "an answer could not be decoded")
    return response


def _reason(error: BaseException) -> str:
    return str(from_rpc_error(error)) if isinstance(error, grpc.aio.AioRpcError) else str(error)
