"""BatchStream: runs the Batch stream to one tokenizer: sends requests at once and matches answers by id in any order.

Opened on first use, and again after a failure, which fails the calls in flight. Owned by a replica. A call on a stream takes
0.5 ms less on both sides than a unary call. One event loop.
"""

import asyncio
import contextlib

import grpc

from tetrad.frontend.tokenizer.link import MessageStream, TokenizerLink
from tetrad.services.rpc.channel import is_call_closed
from tetrad.v1 import tokenizer_pb2

_CLOSED = "the stream was closed"


class BatchStream:
    """The Batch stream of one replica.

    Args:
        link: link to the tokenizer.
    """

    def __init__(self, link: TokenizerLink) -> None:
        self._link = link
        self._call: MessageStream | None = None
        self._task: asyncio.Task[None] | None = None
        self._unsent: asyncio.Queue[tokenizer_pb2.BatchRequest] = asyncio.Queue()
        self._waiting: dict[int, asyncio.Future[tokenizer_pb2.BatchResponse | Exception]] = {}

    async def ask(self, request: tokenizer_pb2.BatchRequest) -> tokenizer_pb2.BatchResponse:
        """Return the response to a message.

        Args:
            request: a request with an id that is unique among the requests in flight.

        Raises:
            grpc.aio.AioRpcError: the stream broke.
            ConnectionError: the stream ended, or a message could not be decoded.
        """
        waiting: asyncio.Future[tokenizer_pb2.BatchResponse | Exception] = asyncio.get_running_loop().create_future()
        self._open()
        self._waiting[request.id] = waiting
        self._unsent.put_nowait(request)
        try:
            answer = await waiting
        finally:
            del self._waiting[request.id]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        """End the stream."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._break(ConnectionError(_CLOSED))

    def _open(self) -> None:
        if self._call is None:
            self._call, self._unsent = self._link.open_batches(), asyncio.Queue()
            self._task = asyncio.create_task(self._run(self._call), name="tokenizer batches")

    async def _run(self, call: MessageStream) -> None:
        """Send messages and deliver responses until the stream ends, then fail the remaining calls with the reason."""
        # Writing has its own task: the cancellation of a caller's task during a write would end the stream for all.
        writing = asyncio.create_task(self._write(call))
        why: Exception = ConnectionError(_CLOSED)
        try:
            while isinstance(response := await call.read(), tokenizer_pb2.BatchResponse):
                self._settle(response.id, response)
            why = ConnectionError("the stream ended" if response is grpc.aio.EOF else "an answer could not be decoded")
        except grpc.aio.AioRpcError as error:
            why = error
        except asyncio.CancelledError as error:
            if not is_call_closed(error):
                raise
        finally:
            writing.cancel()
            self._break(why)

    async def _write(self, call: MessageStream) -> None:
        # When the stream breaks, the reader reports the reason.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await call.write(await self._unsent.get())

    def _break(self, why: Exception) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None
        for number in self._waiting:
            self._settle(number, why)

    def _settle(self, number: int, answer: tokenizer_pb2.BatchResponse | Exception) -> None:
        waiting = self._waiting.get(number)
        if waiting is not None and not waiting.done():  # done: its caller was cancelled
            waiting.set_result(answer)
