"""BatchStream: the Batch stream to one tokenizer: messages go out as they come, each is answered by its id, in any order.

Opened when first needed, and anew behind one that broke; what was under way is broken with it. Owned by a replica. To answer a
call on a stream takes both sides half a millisecond less than a call of its own. One event loop.
"""

import asyncio

import grpc

from tetrad.services.channel import is_call_closed
from tetrad.v1 import tokenizer_pb2, tokenizer_pb2_grpc


class BatchStream:
    """The stream.

    Args:
        stub: of the tokenizer.
    """

    def __init__(self, stub: tokenizer_pb2_grpc.TokenizerServiceStub) -> None:
        self._stub = stub
        self._call: grpc.aio.StreamStreamCall | None = None
        self._reader: asyncio.Task[None] | None = None
        self._answers: dict[int, asyncio.Future[tokenizer_pb2.BatchResponse | Exception]] = {}
        self._turn = asyncio.Lock()  # of writing: gRPC takes one message at a time

    async def ask(self, request: tokenizer_pb2.BatchRequest) -> tokenizer_pb2.BatchResponse:
        """Return the response to a message.

        Args:
            request: its id is unique among those that are under way.

        Raises:
            grpc.aio.AioRpcError: the stream broke.
            ConnectionError: it ended, or brought what cannot be decoded.
        """
        call = self._open()
        waiting: asyncio.Future[tokenizer_pb2.BatchResponse | Exception] = asyncio.get_running_loop().create_future()
        self._answers[request.id] = waiting
        try:
            async with self._turn:
                await call.write(request)
            answer = await waiting
        except asyncio.InvalidStateError:
            raise ConnectionError("the stream has ended") from None
        finally:
            del self._answers[request.id]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        """End the stream."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    def _open(self) -> grpc.aio.StreamStreamCall:
        if self._call is None:
            self._call = self._stub.Batch()
            self._reader = asyncio.create_task(self._read(self._call), name="tokenizer batches")
        return self._call

    async def _read(self, call: grpc.aio.StreamStreamCall) -> None:
        """Hand out responses until the stream ends; whoever still waits then learns why it did."""
        why: Exception = ConnectionError("the stream was closed")
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
            call.cancel()
            self._call = None
            for number in self._answers:
                self._settle(number, why)

    def _settle(self, number: int, answer: tokenizer_pb2.BatchResponse | Exception) -> None:
        waiting = self._answers.get(number)
        if waiting is not None and not waiting.done():  # else nobody waits any more
            waiting.set_result(answer)
