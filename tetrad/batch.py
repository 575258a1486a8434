"""Batch: many requests at once, results in the order they were given. Called by LLM, on its event loop."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tetrad.frontend.async_llm import AsyncLLM
from tetrad.frontend.outputs import RequestOutput
from tetrad.frontend.prompts import PromptType
from tetrad.frontend.sampling_params import RequestOutputKind, SamplingParams

# Prompts that are tokenized at the same time; the engine itself may have any number of requests.
_MAX_ENCODING = 32

OnFinished = Callable[[RequestOutput], None]
"""Told about each request that finished, in the order in which they do; called from the event loop."""


@dataclass(frozen=True)
class BatchItem:
    """One request of a batch. `priority`: larger is more urgent."""

    prompt: PromptType
    params: SamplingParams
    priority: int = 0


class BatchRunner:
    """Runs batches.

    Args:
        llm: what generates.
    """

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm
        self._numbers = itertools.count()

    async def run(self, items: Sequence[BatchItem], on_finished: OnFinished) -> list[RequestOutput]:
        """Return one finished output per item, in the items' order.

        Raises:
            TetradError: of the first request that fails; the others are aborted.
        """
        encoding = asyncio.Semaphore(_MAX_ENCODING)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._run_one(item, str(next(self._numbers)), encoding, on_finished)) for item in items
                ]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _run_one(
        self, item: BatchItem, request_id: str, encoding: asyncio.Semaphore, on_finished: OnFinished
    ) -> RequestOutput:
        # Nobody reads the outputs in between, so none are made.
        params = replace(item.params, output_kind=RequestOutputKind.FINAL_ONLY)
        async with encoding:
            stream = await self._llm.add_request(request_id, item.prompt, params, priority=item.priority)
        try:
            output = await stream.get()
        finally:
            stream.close()
        on_finished(output)
        return output
