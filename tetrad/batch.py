"""Batch: many requests at once, results in the order they were given. Called by LLM, on its event loop."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.beam_search import BeamSearchOutput, BeamSearchParams, beam_search
from tetrad.frontend.llm.output_stream import OutputStream
from tetrad.frontend.request.outputs import LoRARequest, RequestOutput
from tetrad.frontend.request.prompts import PromptType, TokensPrompt
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams
from tetrad.request_counter import RequestCounter

# Prompts that are tokenized at the same time; the engine itself may have any number of requests.
_MAX_ENCODING = 32

T = TypeVar("T")

OnFinished = Callable[[RequestOutput], None]
"""Told about each request that finished, in the order in which they do; called from the event loop."""


@dataclass(frozen=True)
class BatchItem:
    """One request of a batch. `priority`: larger is more urgent; `tokenization`: options of AsyncLLM.add_request."""

    prompt: PromptType
    params: SamplingParams
    priority: int = 0
    lora_request: LoRARequest | None = None
    tokenization: Mapping[str, Any] = field(default_factory=dict)


class BatchRunner:
    """Runs batches.

    Args:
        llm: what generates.

    Attributes:
        numbers: of requests; each number is the id of one.
    """

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm
        self.numbers = RequestCounter()
        self._encoding = asyncio.Semaphore(_MAX_ENCODING)
        self._enqueued: list[OutputStream] = []

    async def run(self, items: Sequence[BatchItem], on_finished: OnFinished) -> list[RequestOutput]:
        """Return one finished output per item, in the items' order.

        Raises:
            TetradError: of the first request that fails; the others are aborted.
        """
        return await _all(self._run_one(item, self._new_id(), on_finished) for item in items)

    async def enqueue(self, items: Sequence[BatchItem], on_added: Callable[[], None]) -> list[str]:
        """Start requests without waiting for them, and return their ids; `collect` returns what they generate.

        Raises:
            TetradError: of the first request that is refused; none of these is started then.
        """
        ids = [self._new_id() for _ in items]
        added: list[OutputStream | None] = [None] * len(items)

        async def add(place: int) -> None:
            added[place] = await self._start(items[place], ids[place])
            on_added()

        try:
            await _all(add(place) for place in range(len(items)))
        except BaseException:
            for stream in added:
                if stream is not None:
                    stream.close()
            raise
        self._enqueued += [stream for stream in added if stream is not None]
        return ids

    @property
    def num_enqueued(self) -> int:
        """Requests that wait to be collected."""
        return len(self._enqueued)

    async def collect(self, on_finished: OnFinished) -> list[RequestOutput]:
        """Return one finished output per request that was enqueued, in that order. Raises what `run` raises."""
        streams, self._enqueued = self._enqueued, []
        return await _all(_finish(stream, on_finished) for stream in streams)

    async def render_chats(self, render: Sequence[Callable[[], Coroutine[Any, Any, TokensPrompt]]]) -> list[TokensPrompt]:
        """Return the prompts that calls of Texts.encode_chat make, in their order."""

        async def one(call: Callable[[], Coroutine[Any, Any, TokensPrompt]]) -> TokensPrompt:
            async with self._encoding:
                return await call()

        return await _all(one(call) for call in render)

    async def beam_search(
        self,
        prompts: Sequence[PromptType],
        params: BeamSearchParams,
        lora_requests: Sequence[LoRARequest | None],
        *,
        concurrency_limit: int | None,
        on_found: Callable[[], None],
    ) -> list[BeamSearchOutput]:
        """Return one output per prompt, in the prompts' order; at most `concurrency_limit` searches run at the same time."""
        limit = contextlib.nullcontext() if concurrency_limit is None else asyncio.Semaphore(concurrency_limit)

        async def search(prompt: PromptType, lora_request: LoRARequest | None) -> BeamSearchOutput:
            async with limit:
                output = await beam_search(self._llm, self._new_id(), prompt, params, lora_request=lora_request)
            on_found()
            return output

        return await _all(search(*pair) for pair in zip(prompts, lora_requests, strict=True))

    def _new_id(self) -> str:
        return str(next(self.numbers))

    async def _run_one(self, item: BatchItem, request_id: str, on_finished: OnFinished) -> RequestOutput:
        return await _finish(await self._start(item, request_id), on_finished)

    async def _start(self, item: BatchItem, request_id: str) -> OutputStream:
        # Nobody reads the outputs in between, so none are made.
        params = replace(item.params, output_kind=RequestOutputKind.FINAL_ONLY)
        async with self._encoding:
            return await self._llm.add_request(
                request_id,
                item.prompt,
                params,
                priority=item.priority,
                lora_request=item.lora_request,
                **item.tokenization,
            )


async def _finish(stream: OutputStream, on_finished: OnFinished) -> RequestOutput:
    try:
        output = await stream.get()
    finally:
        stream.close()
    on_finished(output)
    return output


async def _all(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results in order; the first failure cancels the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
