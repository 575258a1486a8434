"""LLMEngine: requests in, steps out, for programs that drive generation themselves; vLLM's class of the same name.

A thin bridge over AsyncLLM: each request has one task on the background event loop that moves its outputs into one queue;
`step` empties the queue. The engine core works ahead meanwhile. Not for several threads at once.
"""

import asyncio
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from tetrad.arguments import tokenization_of
from tetrad.async_llm import AsyncLLM
from tetrad.engine_args import EngineArgs
from tetrad.event_loop_thread import EventLoopThread
from tetrad.frontend.async_llm import AsyncLLM as Frontend
from tetrad.frontend.output_stream import OutputStream
from tetrad.frontend.outputs import LoRARequest, RequestOutput
from tetrad.frontend.prompts import PromptType
from tetrad.frontend.sampling_params import SamplingParams
from tetrad.services.errors import InvalidRequest, TetradError
from tetrad.services.log import get_logger

log = get_logger()


@dataclass(frozen=True)
class ModelConfig:
    """The model that is served. `max_model_len`: longest prompt plus output, in tokens."""

    model: str
    dtype: str
    max_model_len: int
    vocab_size: int


@dataclass(frozen=True)
class SchedulerConfig:
    """How steps are made up: requests that run at the same time, tokens of one step, and whether priorities count."""

    max_num_seqs: int
    max_num_batched_tokens: int
    policy: str


@dataclass(frozen=True)
class ParallelConfig:
    """Over how many devices the engine is spread."""

    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int


class LLMEngine:
    """An engine and the services it needs, started with it and ended with it. Made by `from_engine_args`."""

    def __init__(self, args: EngineArgs) -> None:
        self._loop = EventLoopThread()
        self._requests = self._loop.run(_make(args))
        self._finalizer = weakref.finalize(self, _close, self._requests, self._loop)
        try:
            self._frontend = self._loop.run(self._requests.start())
        except BaseException:
            self._finalizer()
            raise

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        """Return an engine whose services take work. Raises what LLM raises."""
        return cls(engine_args)

    def add_request(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams,
        arrival_time: float | None = None,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
    ) -> None:
        """Send a request to the engine, which begins at once.

        Args:
            request_id: names the request in `step`'s outputs; unique among unfinished ones.
            prompt: text, ids, TextPrompt or TokensPrompt.
            params: how to sample.
            arrival_time: wall clock in seconds; now, if not given.
            lora_request: adapter to run with.
            tokenization_kwargs: `add_special_tokens`, `truncate_prompt_tokens`, `truncation_side`.
            trace_headers: W3C traceparent and tracestate of the span that this request belongs under.
            priority: larger is more urgent.

        Raises:
            TypeError: `request_id` is not a string, or an unknown tokenization argument.
            InvalidRequest: a duplicate id, an empty or over-long prompt, a bad parameter. It is a ValueError.
        """
        if not isinstance(request_id, str):
            raise TypeError(f"request_id must be a string, got {type(request_id).__name__}")
        self._loop.run(
            self._requests.add(
                request_id,
                prompt,
                params,
                arrival_time=arrival_time,
                lora_request=lora_request,
                trace_headers=trace_headers,
                priority=priority,
                **tokenization_of(tokenization_kwargs),
            )
        )

    def step(self) -> list[RequestOutput]:
        """Wait until a request makes progress, and return all progress made since the last step.

        Returns nothing at once if no request is unfinished. Raises the TetradError of a request that failed.
        """
        return self._loop.run(self._requests.next_outputs())

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """End requests; no output follows for them. Unknown and finished ids are ignored."""
        ids = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        self._loop.run(self._requests.abort(ids))

    def has_unfinished_requests(self) -> bool:
        """Return whether `step` has anything left to return."""
        return self.get_num_unfinished_requests() > 0

    def get_num_unfinished_requests(self) -> int:
        """Return how many requests have not had their last output."""
        return self._requests.num_unfinished

    def get_model_config(self) -> ModelConfig:
        """Return the model that is served."""
        info = self._frontend.engine_info
        return ModelConfig(self._frontend.model_names.root, info.dtype, info.max_model_len, info.vocab_size)

    def get_scheduler_config(self) -> SchedulerConfig:
        """Return how steps are made up."""
        info = self._frontend.engine_info
        return SchedulerConfig(
            info.max_num_seqs, info.max_num_batched_tokens, "priority" if info.priority_scheduling else "fcfs"
        )

    def get_parallel_config(self) -> ParallelConfig:
        """Return over how many devices the engine is spread."""
        info = self._frontend.engine_info
        return ParallelConfig(info.tensor_parallel_size, info.pipeline_parallel_size, info.data_parallel_size)

    def do_log_stats(self) -> None:
        """Log how much there is to do, at info."""
        log.info("engine.stats", num_unfinished=self.get_num_unfinished_requests(), num_steps=self._frontend.num_engine_steps)

    def close(self) -> None:
        """End the services, within 5 s; this happens by itself when the program ends."""
        self._finalizer()


class _Requests:
    """The unfinished requests of an engine; lives on the event loop.

    Invariant: an id is in `_pumps` until its last output was handed out, its error was raised, or it was aborted.
    """

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm
        self._frontend: Frontend | None = None
        self._pumps: dict[str, asyncio.Task[None]] = {}
        self._outputs: asyncio.Queue[tuple[str, RequestOutput | TetradError]] = asyncio.Queue()

    @property
    def num_unfinished(self) -> int:
        return len(self._pumps)

    async def start(self) -> Frontend:
        self._frontend = await self._llm.start()
        return self._frontend

    async def add(self, request_id: str, prompt: PromptType, params: SamplingParams, **options: Any) -> None:
        if request_id in self._pumps:
            raise InvalidRequest(f"Request id {request_id} is in use by an unfinished request.", field="request_id")
        assert self._frontend is not None
        stream = await self._frontend.add_request(request_id, prompt, params, **options)
        self._pumps[request_id] = asyncio.create_task(self._pump(request_id, stream))

    async def next_outputs(self) -> list[RequestOutput]:
        outputs: list[RequestOutput] = []
        while self._pumps and not outputs:
            entries = [await self._outputs.get()]
            while not self._outputs.empty():
                entries.append(self._outputs.get_nowait())
            outputs = self._take(entries)
        return outputs

    async def abort(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            pump = self._pumps.pop(request_id, None)
            if pump is not None:
                pump.cancel()

    async def close(self) -> None:
        await self.abort(list(self._pumps))
        await self._llm.close()

    def _take(self, entries: list[tuple[str, RequestOutput | TetradError]]) -> list[RequestOutput]:
        outputs = []
        for place, (request_id, output) in enumerate(entries):
            if request_id not in self._pumps:  # aborted meanwhile
                continue
            if isinstance(output, TetradError):
                del self._pumps[request_id]
                # What was taken with it must not be lost.
                for entry in entries[place + 1 :]:
                    self._outputs.put_nowait(entry)
                raise output
            if output.finished:
                del self._pumps[request_id]
            outputs.append(output)
        return outputs

    async def _pump(self, request_id: str, stream: OutputStream) -> None:
        try:
            async for output in stream:
                self._outputs.put_nowait((request_id, output))
        except TetradError as error:
            self._outputs.put_nowait((request_id, error))
        finally:
            stream.close()


async def _make(args: EngineArgs) -> _Requests:
    """Make the requests on the loop they belong to."""
    return _Requests(AsyncLLM.from_engine_args(args))


def _close(requests: _Requests, loop: EventLoopThread) -> None:
    try:
        loop.run(requests.close())
    finally:
        loop.close()
