"""DetokenizerClient: runs the Detokenize stream: sends the ids of a whole engine step and receives their text deltas.

A step takes one message and one answer. The first message on a stream that names a handle opens it. So the loss of a tokenizer
needs no special case: the new stream, on this or another replica, has no open handles, and the next message opens them with the
ids so far. Large steps take several messages: some only open handles, and each part of the sequences has one. One event loop.
"""

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import grpc

from tetrad.frontend.net.backoff import Backoff
from tetrad.frontend.request.sequence import Sequence
from tetrad.frontend.tokenizer.link import MessageStream
from tetrad.frontend.tokenizer.replicas import Replica, TokenizerReplicas
from tetrad.services.errors import TetradError, Unavailable
from tetrad.services.log import get_logger
from tetrad.services.message_size import BATCH_BYTES, batches
from tetrad.services.rpc.channel import is_call_closed
from tetrad.services.rpc.columns import pack_u32, unpack_u32
from tetrad.services.rpc.status import from_rpc_error, from_status
from tetrad.services.timers.idle_timer import IdleTimer
from tetrad.services.timers.running_time import running_timeout
from tetrad.v1 import tokenizer_pb2

log = get_logger()

_BROKEN = (grpc.aio.AioRpcError, asyncio.InvalidStateError, ConnectionError)


_MOST_ENTRIES = 32_768
"""Maximum number of rows plus tokens of one message: its answer has all their texts, up to hundreds of characters a token."""
_MOST_OPEN_BYTES = BATCH_BYTES // 2
"""Maximum size of the opened handles in one message."""


@dataclass(frozen=True, slots=True)
class Row:
    """Tokens of one sequence whose text is returned as one delta. A sequence may have several rows in a message."""

    sequence: Sequence
    token_ids: list[int]


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
                        delta for part in _parts(rows) for delta in await self._append_part(part, _finals(part, final_handles))
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
            deltas = _deltas(rows, answer)
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
        append = tokenizer_pb2.DetokenizeAppend(
            handles=pack_u32([row.sequence.handle for row in rows]),
            num_tokens=pack_u32([len(row.token_ids) for row in rows]),
            token_ids=pack_u32([token_id for row in rows for token_id in row.token_ids]),
            final_handles=pack_u32(final_handles),
        )
        closed, self._to_close = self._to_close, []
        return tokenizer_pb2.DetokenizeRequest(open=opens, append=append, close=pack_u32(closed))

    def _new_handles(self, rows: list[Row]) -> Iterator[tokenizer_pb2.DetokenizeOpen]:
        for row in rows:
            if row.sequence.handle not in self._open:
                self._open.add(row.sequence.handle)
                yield _open(row.sequence)

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


def _parts(rows: list[Row]) -> list[list[Row]]:
    """Return the rows in parts, one for each message. All rows of a sequence are in one part.

    If the stream breaks between two parts, the next step opens the handles of the finished parts again.
    """
    if _num_entries(rows) <= _MOST_ENTRIES:
        return [rows]
    by_sequence = [list(each) for _, each in itertools.groupby(rows, lambda row: row.sequence.handle)]
    return [[row for group in part for row in group] for part in batches(by_sequence, _num_entries, _MOST_ENTRIES)]


def _num_entries(rows: list[Row]) -> int:
    return len(rows) + sum([len(row.token_ids) for row in rows])


def _finals(part: list[Row], final_handles: list[int]) -> list[int]:
    """Return the handles of a part that end with this step."""
    if not final_handles:
        return []
    handles = {row.sequence.handle for row in part}
    return [handle for handle in final_handles if handle in handles]


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
    """Return the delta or error of each row. The response has the order of the rows, without failed handles.

    Raises:
        ValueError: the response is inconsistent or belongs to another message.
    """
    failures = {failure.handle: from_status(failure.status) for failure in response.failures}
    handles = unpack_u32(response.handles)
    if len(handles) != len(response.deltas):
        raise ValueError(f"{len(handles)} handles have {len(response.deltas)} deltas")
    answered = iter(zip(handles, response.deltas, strict=True))
    present = next(answered, None)
    deltas: list[str | TetradError] = []
    for row in rows:
        handle = row.sequence.handle
        if present is not None and present[0] == handle:
            delta = present[1]
            present = next(answered, None)
            # A failed handle may still be present, with an empty delta.
            deltas.append(failures.get(handle, delta))
        elif handle in failures:
            deltas.append(failures[handle])
        else:
            raise ValueError(f"handle {handle} was left out")
    if present is not None:
        raise ValueError(f"handle {present[0]} has no place there")
    return deltas
