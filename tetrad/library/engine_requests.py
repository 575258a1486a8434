"""EngineRequests: keeps the requests of an LLMEngine, on the event loop of its AsyncLLM.

Each request has one task that moves its outputs into a common queue; `next_outputs` empties the queue. Invariant: a request is
in `_unfinished` until its last output was returned, its error was raised, or it was aborted; after an abort it is in `_ending`
until its last output was returned.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.output_stream import OutputStream
from tetrad.frontend.llm.pooling_job import PoolingJob
from tetrad.frontend.request.outputs import RequestOutput
from tetrad.frontend.request.pooling import PoolingParams
from tetrad.frontend.request.prompts import PromptType
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.library.arguments import checked_params
from tetrad.library.media_prompts import with_files
from tetrad.library.pooling_outputs import PooledRequestOutput, PoolingOutput, pooled_answer
from tetrad.services.errors import InvalidRequest, TetradError

EngineOutput = RequestOutput | PooledRequestOutput[PoolingOutput]


@dataclass(eq=False)
class _Live:
    """A request with its stream of outputs and the task that moves them. A pooling request has no stream."""

    request_id: str
    stream: OutputStream | None
    pump: "asyncio.Task[None] | None" = field(default=None)


_Entry = tuple[_Live, EngineOutput | TetradError]


class EngineRequests:
    """The requests of one program.

    Args:
        frontend: runs the requests.
    """

    def __init__(self, frontend: AsyncLLM) -> None:
        self._frontend = frontend
        self._unfinished: dict[str, _Live] = {}
        self._ending: set[_Live] = set()
        self._outputs: asyncio.Queue[_Entry] = asyncio.Queue()
        self._failure: _Entry | None = None

    @property
    def num_unfinished(self) -> int:
        """The number of unfinished requests."""
        return len(self._unfinished)

    @property
    def has_outputs(self) -> bool:
        """Whether `next_outputs` has further outputs to return, now or later."""
        return bool(self._unfinished or self._ending)

    async def add(self, request_id: str, prompt: PromptType, params: SamplingParams, **options: Any) -> None:
        """Send a request to the engine. Errors: see AsyncLLM.add_request; InvalidRequest if the id is in use."""
        self._check_free(request_id)
        stream = await self._frontend.add_request(request_id, await with_files(prompt), checked_params(params), **options)
        live = self._unfinished[request_id] = _Live(request_id, stream)
        live.pump = asyncio.create_task(self._pump(live, stream))

    async def add_pooling(self, request_id: str, prompt: PromptType, params: PoolingParams, **options: Any) -> None:
        """Send a pooling request to the engine. Errors: see AsyncLLM.encode_all; InvalidRequest if the id is in use."""
        self._check_free(request_id)
        job = await self._frontend.add_pooling_request(request_id, [await with_files(prompt)], [params], **options)
        live = self._unfinished[request_id] = _Live(request_id, None)
        live.pump = asyncio.create_task(self._pump_answer(live, job))

    async def next_outputs(self) -> list[EngineOutput]:
        """Wait for new outputs and return all of them; return an empty list at once if there is no unfinished request.

        Raises:
            TetradError: the error of a failed request, after all earlier outputs have been returned.
        """
        if not self.has_outputs:
            return []
        outputs: list[EngineOutput] = []
        entry = self._failure or await self._outputs.get()
        self._failure = None
        while True:
            live, output = entry
            if isinstance(output, TetradError):
                if outputs:
                    self._failure = entry
                    return outputs
                self._forget(live)
                raise output
            if output.finished:
                self._forget(live)
            outputs.append(output)
            if self._outputs.empty():
                return outputs
            entry = self._outputs.get_nowait()

    async def abort(self, request_ids: Iterable[str]) -> None:
        """Abort requests; each generation request has one last output. Their ids may be used again at once."""
        for request_id in request_ids:
            live = self._unfinished.pop(request_id, None)
            if live is None:
                continue
            if live.stream is not None:
                self._ending.add(live)
                live.stream.abort()
            elif live.pump is not None:
                live.pump.cancel()
                self._drop_outputs(live)

    def _check_free(self, request_id: str) -> None:
        if request_id in self._unfinished:
            raise InvalidRequest(f"Request id {request_id} is in use by an unfinished request.", field="request_id")

    def _forget(self, live: _Live) -> None:
        self._ending.discard(live)
        if self._unfinished.get(live.request_id) is live:
            del self._unfinished[live.request_id]

    def _drop_outputs(self, live: _Live) -> None:
        """Drop the outputs of a request that `next_outputs` has not returned."""
        if self._failure is not None and self._failure[0] is live:
            self._failure = None
        for _ in range(self._outputs.qsize()):
            entry = self._outputs.get_nowait()
            if entry[0] is not live:
                self._outputs.put_nowait(entry)

    async def _pump(self, live: _Live, stream: OutputStream) -> None:
        try:
            async for output in stream:
                self._outputs.put_nowait((live, output))
        except TetradError as error:
            self._outputs.put_nowait((live, error))
        finally:
            stream.close()

    async def _pump_answer(self, live: _Live, job: PoolingJob) -> None:
        try:
            [output] = await job.answers()
            self._outputs.put_nowait((live, pooled_answer(output, PoolingOutput(output.outputs.to_list()))))
        except TetradError as error:
            self._outputs.put_nowait((live, error))
