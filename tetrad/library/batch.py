"""Batch: runs many requests concurrently and returns results in the order of the requests. Called by LLM on its event loop."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.beam_search import BeamSearchOutput, BeamSearchParams, beam_search
from tetrad.frontend.llm.output_stream import OutputStream
from tetrad.frontend.net.together import all_of
from tetrad.frontend.request.outputs import LoRARequest, RequestOutput
from tetrad.frontend.request.pooling import PoolingParams, PoolingRequestOutput
from tetrad.frontend.request.prompts import PromptType, TokensPrompt
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams
from tetrad.library.media_prompts import has_media, with_files
from tetrad.library.media_window import MediaWindow
from tetrad.library.request_counter import RequestCounter

# Maximum number of prompts that are tokenized at the same time; the number of requests in the engine is not limited.
_MAX_ENCODING = 32
# Likewise for conversations with templates of their own: a tokenizer refuses more than 16 at the same time.
_MAX_RENDERING = 8

T = TypeVar("T")

OnFinished = Callable[[RequestOutput], None]
"""Called with the output of each finished request, in the order of completion; on the event loop."""


PromptMaker = Callable[[], Coroutine[Any, Any, PromptType]]
"""Makes a prompt when its request starts."""


@dataclass(frozen=True)
class BatchItem:
    """One request of a batch.

    Attributes:
        prompt: the prompt; or its maker, for a conversation with images, which need much memory once they are preprocessed.
        params: the sampling parameters.
        priority: a larger value is more urgent.
        lora_request: the adapter; None: none.
        tokenization: options of AsyncLLM.add_request.
    """

    prompt: PromptType | PromptMaker
    params: SamplingParams
    priority: int = 0
    lora_request: LoRARequest | None = None
    tokenization: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_media(self) -> bool:
        """Whether its prompt has images."""
        return callable(self.prompt) or has_media(self.prompt)


class BatchRunner:
    """Runs batches.

    Args:
        llm: runs the requests.

    Attributes:
        numbers: makes the numbers of requests, which are their ids.
    """

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm
        self.numbers = RequestCounter()
        self._encoding = asyncio.Semaphore(_MAX_ENCODING)
        self._rendering = asyncio.Semaphore(_MAX_RENDERING)
        self._media = MediaWindow()
        self._enqueued: list[OutputStream] = []

    async def run(self, items: Sequence[BatchItem], on_finished: OnFinished) -> list[RequestOutput]:
        """Return one finished output per item, in the items' order.

        Raises:
            TetradError: the error of the first request that fails; the others are aborted.
        """
        return await all_of(self._run_one(item, self._new_id(), on_finished) for item in items)

    async def pool(
        self,
        prompts: Sequence[PromptType],
        params: Sequence[PoolingParams],
        tokenization: Mapping[str, Any],
        on_finished: Callable[[], None],
        lora_requests: Sequence[LoRARequest | None] = (),
    ) -> list[PoolingRequestOutput]:
        """Return the answers of pooling requests, in the order of the prompts. Errors: see `run`."""
        if not prompts:
            return []
        ids = [self._new_id() for _ in prompts]
        options = {**tokenization, "lora_requests": lora_requests, "on_answer": on_finished}
        readable = await all_of(map(with_files, prompts))
        every = await self._llm.encode_all(readable, params, ids[0], **options)
        return [replace(output, request_id=each) for each, output in zip(ids, every, strict=True)]

    async def enqueue(self, items: Sequence[BatchItem], on_added: Callable[[], None]) -> list[str]:
        """Start requests without waiting for them, and return their ids; `collect` returns their outputs.

        Raises:
            TetradError: the error of the first refused request; then none of these requests is started.
        """
        ids = [self._new_id() for _ in items]
        added: list[OutputStream | None] = [None] * len(items)

        async def add(place: int) -> None:
            added[place] = await self._start(items[place], ids[place])
            on_added()

        try:
            await all_of(add(place) for place in range(len(items)))
        except BaseException:
            for stream in added:
                if stream is not None:
                    stream.close()
            raise
        self._enqueued += [stream for stream in added if stream is not None]
        return ids

    @property
    def num_enqueued(self) -> int:
        """The number of requests to collect."""
        return len(self._enqueued)

    async def collect(self, on_finished: OnFinished) -> list[RequestOutput]:
        """Return one finished output per enqueued request, in that order. Errors: see `run`."""
        streams, self._enqueued = self._enqueued, []
        return await all_of(_finish(stream, on_finished) for stream in streams)

    async def render_chats(
        self, render: Sequence[Callable[[], Coroutine[Any, Any, TokensPrompt]]], *, own_template: bool
    ) -> list[TokensPrompt]:
        """Return the prompts that these calls of Texts.encode_chat return, in order; `own_template`: they have a template."""
        limit = self._rendering if own_template else self._encoding

        async def one(call: Callable[[], Coroutine[Any, Any, TokensPrompt]]) -> TokensPrompt:
            async with limit:
                return await call()

        return await all_of(one(call) for call in render)

    def maker(self, render: Callable[[], Coroutine[Any, Any, TokensPrompt]], *, own_template: bool) -> PromptMaker:
        """Return a function that renders one conversation when its request starts; arguments as of `render_chats`."""

        async def made() -> PromptType:
            # The request itself holds a place among those that are encoded.
            async with self._rendering if own_template else contextlib.nullcontext():
                return await render()

        return made

    async def beam_search(
        self,
        prompts: Sequence[PromptType],
        params: BeamSearchParams,
        lora_requests: Sequence[LoRARequest | None],
        *,
        concurrency_limit: int | None,
        on_found: Callable[[], None],
    ) -> list[BeamSearchOutput]:
        """Return one output per prompt, in the order of the prompts; at most `concurrency_limit` searches run at a time."""
        limit = contextlib.nullcontext() if concurrency_limit is None else asyncio.Semaphore(concurrency_limit)

        async def search(prompt: PromptType, lora_request: LoRARequest | None) -> BeamSearchOutput:
            async with limit:
                readable = await with_files(prompt)
                output = await beam_search(self._llm, self._new_id(), readable, params, lora_request=lora_request)
            on_found()
            return output

        return await all_of(search(*pair) for pair in zip(prompts, lora_requests, strict=True))

    def _new_id(self) -> str:
        return str(next(self.numbers))

    async def _run_one(self, item: BatchItem, request_id: str, on_finished: OnFinished) -> RequestOutput:
        async def attempt() -> RequestOutput:
            return await _finish(await self._start(item, request_id), on_finished)

        return await (self._media.run(attempt) if item.has_media else attempt())

    async def _start(self, item: BatchItem, request_id: str) -> OutputStream:
        # Only final outputs are read, so no others are requested.
        params = replace(item.params, output_kind=RequestOutputKind.FINAL_ONLY)
        async with self._encoding:
            prompt = await item.prompt() if callable(item.prompt) else await with_files(item.prompt)
            return await self._llm.add_request(
                request_id,
                prompt,
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
