"""FakeEncoder: encodes the media items of a fake worker beside its steps, and checks the engine core's rules for them."""

import asyncio

import grpc

from tetrad.services.errors import TetradError
from tetrad.services.rpc.columns import unpack_u32
from tetrad.services.rpc.status import to_status
from tetrad.v1 import types_pb2, worker_pb2


class FakeEncoder:
    """The encoder cache of one worker; without modalities, there is none.

    Clear `go` and it encodes nothing. It fails the items of `refused`, and the process dies of those of `deadly`. `seen` are
    the identifiers of the items that it was asked to encode, `messages` the messages that asked; `answers` come of themselves.
    With `is_attended` the model has an encoder and a decoder, and every step of a request reads its item.
    """

    def __init__(self) -> None:
        self.modalities: list[types_pb2.ModalityInfo] = []
        self.is_attended = False
        self.go = asyncio.Event()
        self.go.set()
        self._asked = asyncio.Event()
        self.refused: dict[str, TetradError] = {}
        self.deadly: set[str] = set()
        self.num_deaths = 0
        self.seen: list[str] = []
        self.messages: list[worker_pb2.EncoderInputs] = []
        self.answers: list[worker_pb2.EncoderEvents] = []
        self.size = self.max_used = 0
        self.cache: dict[str, int] = {}
        self.spans: dict[int, list[types_pb2.MultiModalFeature]] = {}

    async def until_asked(self) -> None:
        """Wait until it was asked for an item."""
        async with asyncio.timeout(20):
            await self._asked.wait()

    def ask(self, inputs: worker_pb2.EncoderInputs) -> None:
        """Note items to encode."""
        self.messages.append(inputs)
        self.seen += [item.identifier for item in inputs.items]
        self._asked.set()

    def forget(self) -> None:
        """Begin with an empty cache: a stream has ended."""
        self.cache, self.spans = {}, {}

    def answer(self, inputs: worker_pb2.EncoderInputs) -> worker_pb2.ExecuteResponse:
        """Encode items."""
        events = self.answers.pop() if self.answers else worker_pb2.EncoderEvents()
        for item in inputs.items:
            assert item.identifier not in self.cache, "it is encoded already"
            if item.identifier in self.refused:
                error = to_status(self.refused[item.identifier])
                events.failures.add(identifier=item.identifier, error=error)
                continue
            self.cache[item.identifier] = item.num_embeds
            self.max_used = max(self.max_used, sum(self.cache.values()))
            assert self.max_used <= self.size, "the cache exceeds its size"
            events.encoded.append(item.identifier)
        return worker_pb2.ExecuteResponse(encoder_events=events)

    def begin_step(self, step: worker_pb2.SchedulerOutput) -> None:
        """Drop entries, and check that those which the step reads are there."""
        for identifier in step.freed_encoder_hashes:
            del self.cache[identifier]
        work = []
        for new in step.new_requests:
            assert not any(feature.tensors for feature in new.mm_features)
            self.spans[new.handle] = list(new.mm_features)
            work.append((new.handle, new.num_computed_tokens, new.num_scheduled_tokens))
        cached = step.cached_requests
        columns = (cached.handles, cached.num_computed_tokens, cached.num_scheduled_tokens)
        work += zip(*map(unpack_u32, columns), strict=True)
        for handle, start, count in work:
            for span in self.spans[handle]:
                if self.is_attended or (span.offset < start + count and start < span.offset + span.length):
                    assert span.identifier in self.cache, "a step reads an item that is not encoded"


async def merged(steps, requests: asyncio.Queue, encoder: FakeEncoder, context):
    """Yield the answers of steps and of the encoder as they come; `requests` are items to encode."""
    out: asyncio.Queue = asyncio.Queue()

    async def read_steps():
        try:
            async for response in steps:
                out.put_nowait(response)
            out.put_nowait(None)
        except BaseException as error:
            out.put_nowait(error)
            raise

    async def encode():
        try:
            while True:
                inputs = await requests.get()
                encoder.ask(inputs)
                await encoder.go.wait()
                if encoder.deadly & {item.identifier for item in inputs.items}:
                    encoder.num_deaths += 1
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "socket closed")
                out.put_nowait(encoder.answer(inputs))
        except BaseException as error:
            out.put_nowait(error)
            raise

    tasks = [asyncio.create_task(read_steps()), asyncio.create_task(encode())]
    try:
        while (response := await out.get()) is not None:
            if isinstance(response, BaseException):
                raise response
            yield response
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
