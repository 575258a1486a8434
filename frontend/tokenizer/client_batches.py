"""TokenizerBatches: combines small tokenizer calls that arrive together, or while others are in flight, into one message.

A separate call costs each side more time than encoding a short text, and separate calls delay each other. Used by
TokenizerClient; it calls the replicas. A failed batch is not repeated: its calls are then made one by one, by the rules for
single calls. One event loop.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeGuard

from tetrad.frontend.net.batching import batch_complete
from tetrad.frontend.tokenizer.replicas import Connection
from tetrad.services.errors import TetradError
from tetrad.services.log import get_logger
from tetrad.services.request_context import current_context
from tetrad.services.rpc.status import from_status
from tetrad.services.timers.running_time import running_timeout
from tetrad.v1 import tokenizer_pb2

_MOST_CALLS = 32
_MOST_BYTES = 4_000
"""Size of the largest call in a batch: a longer one would delay the others."""

Call = tokenizer_pb2.EncodeRequest | tokenizer_pb2.RenderChatRequest
Send = Callable[[tokenizer_pb2.BatchRequest, set[Connection]], Awaitable[Any]]
"""Returns the answer of a tokenizer, None if none answers; adds the connections that broke during the call to the set."""

log = get_logger()


def goes_together(call: object) -> TypeGuard[Call]:
    """Return whether a call may share a message: it is small and has neither a client's template nor images."""
    if not isinstance(call, Call) or call.HasField("chat_template") or has_media(call):
        return False
    return call.ByteSize() <= _MOST_BYTES


def has_media(call: object) -> bool:
    """Return whether a call has media, whose preprocessing takes long and whose answer is large."""
    return isinstance(call, tokenizer_pb2.PrepareSpeechRequest) or (isinstance(call, Call) and len(call.media) > 0)


class TokenizerBatches:
    """The batches of one kind of call, so that texts do not wait for chat templates.

    Args:
        send: sends one message to a tokenizer.
        patience_s: maximum seconds of a batch, for which further calls wait.
    """

    def __init__(self, send: Send, patience_s: float) -> None:
        self._send = send
        self._patience_s = patience_s
        self._waiting: list[_Waiting] = []
        self._under_way: set[asyncio.Task[None]] = set()
        self._is_gathering = False  # the next message has not been sent yet: further calls join it

    async def ask(self, call: Call, lost: set[Connection]) -> Any:
        """Return a call's answer; None: the caller must make the call alone.

        Args:
            call: a call that `goes_together` accepts.
            lost: receives the connections that broke during the call.

        Raises:
            TetradError: the tokenizer's error for this call.
        """
        waiting = _Waiting(call)
        self._waiting.append(waiting)
        self._go_on()
        answer = await waiting.answer
        lost |= waiting.lost
        if answer is None:
            return None
        if answer.HasField("error"):
            raise from_status(answer.error)
        kind = waiting.call.WhichOneof("call")
        return getattr(answer, kind) if answer.HasField(kind) else None

    def _go_on(self) -> None:
        """Send the waiting calls, unless a batch is in flight; a full message does not wait for that."""
        if self._is_gathering or not self._waiting or (self._under_way and len(self._waiting) < _MOST_CALLS):
            return
        self._is_gathering = True
        # Without a request context: the message belongs to several requests.
        task = asyncio.create_task(self._send_next(), context=contextvars.Context())
        self._under_way.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._go_on()

    async def _send_next(self) -> None:
        await batch_complete(lambda: len(self._waiting), most=_MOST_CALLS)
        batch, self._waiting = self._waiting[:_MOST_CALLS], self._waiting[_MOST_CALLS:]
        self._is_gathering = False
        self._go_on()
        batch = [each for each in batch if not each.answer.done()]  # done: its caller was cancelled
        answers: Sequence[tokenizer_pb2.BatchedAnswer | None] = [None] * len(batch)
        lost: set[Connection] = set()
        try:
            if batch:
                async with running_timeout(self._patience_s):
                    response = await self._send(tokenizer_pb2.BatchRequest(calls=[each.call for each in batch]), lost)
                if response is not None and len(response.answers) == len(batch):
                    answers = response.answers
        except (TetradError, TimeoutError) as error:
            log.debug("tokenizer.batch_failed", reason=repr(error))
        finally:
            for each, answer in zip(batch, answers, strict=True):
                each.settle(answer, lost)


class _Waiting:
    """One call and its future."""

    def __init__(self, call: Call) -> None:
        self.call = tokenizer_pb2.BatchedCall(trace_headers=current_context().headers())
        if isinstance(call, tokenizer_pb2.EncodeRequest):
            self.call.encode.CopyFrom(call)
        else:
            self.call.render_chat.CopyFrom(call)
        self.answer: asyncio.Future[tokenizer_pb2.BatchedAnswer | None] = asyncio.get_running_loop().create_future()
        self.lost: set[Connection] = set()

    def settle(self, answer: tokenizer_pb2.BatchedAnswer | None, lost: set[Connection]) -> None:
        self.lost = lost
        if not self.answer.done():
            self.answer.set_result(answer)
