"""AsyncLLM as programs use it: the frontend's AsyncLLM together with the services it needs.

Called by programs, and by LLM and LLMEngine through their event-loop thread. Where the services are is llm_services.py's; the
frontend's AsyncLLM does all the work. One event loop: the one of the first await.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Self

from tetrad.engine_args import EngineArgs
from tetrad.frontend.async_llm import AsyncLLM as Frontend
from tetrad.frontend.beam_search import BeamSearchOutput, BeamSearchParams, beam_search
from tetrad.frontend.engine_admin_client import PauseMode
from tetrad.frontend.outputs import LoRARequest, RequestOutput
from tetrad.frontend.prompts import PromptType
from tetrad.frontend.sampling_params import SamplingParams
from tetrad.llm_services import LocalServices, RemoteServices, Services
from tetrad.services.log import configure_library_logging

# A program that queues a million prompts of its own is to have them answered.
_UNLIMITED = {"max_num_requests": 0, "max_num_queued_tokens": 0}


class AsyncLLM:
    """An LLM for asyncio programs. Starts at the first request, or at `start`; close it, or use `async with`.

    Args:
        services: what it talks to; see `from_engine_args` and `from_target`.
    """

    def __init__(self, services: Services) -> None:
        configure_library_logging()
        self._services = services
        self._starting = asyncio.Lock()  # guards _frontend: two first requests must not start two stacks
        self._frontend: Frontend | None = None
        self._numbers = itertools.count()

    @classmethod
    def from_engine_args(cls, args: EngineArgs) -> Self:
        """Return an AsyncLLM that starts services of its own."""
        return cls(LocalServices(args))

    @classmethod
    def from_target(cls, target: str, admin_target: str | None = None) -> Self:
        """Return an AsyncLLM in front of services that run already; see RemoteServices for the arguments."""
        return cls(RemoteServices(target, admin_target))

    async def start(self) -> Frontend:
        """Return the frontend, starting everything if that has not happened.

        Raises:
            NotFound, FailedPrecondition: the model cannot be served.
            Unavailable: the services did not come up.
        """
        async with self._starting:
            if self._frontend is None:
                try:
                    settings = await self._services.start()
                    self._frontend = await Frontend.connect(settings.model_copy(update=_UNLIMITED))
                except BaseException:
                    await self._services.close()
                    raise
        return self._frontend

    async def generate(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams,
        request_id: str | None = None,
        *,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
        data_parallel_rank: int | None = None,
        trace_headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Yield the outputs of a request; leaving the loop early aborts it. Raises what the frontend's `add_request` raises."""
        frontend = await self.start()
        request_id = request_id if request_id is not None else f"request-{next(self._numbers)}"
        stream = await frontend.add_request(
            request_id,
            prompt,
            sampling_params,
            priority=priority,
            lora_request=lora_request,
            data_parallel_rank=data_parallel_rank,
            trace_headers=trace_headers,
        )
        try:
            async for output in stream:
                yield output
        finally:
            stream.close()

    async def beam_search(
        self,
        prompt: PromptType,
        params: BeamSearchParams,
        request_id: str | None = None,
        *,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
    ) -> BeamSearchOutput:
        """Return the best continuations of a prompt. Arguments and errors: see frontend/beam_search.py."""
        frontend = await self.start()
        request_id = request_id if request_id is not None else f"request-{next(self._numbers)}"
        return await beam_search(frontend, request_id, prompt, params, priority=priority, lora_request=lora_request)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests; their last output has finish_reason "abort". Unknown ids are ignored."""
        if self._frontend is not None:
            await self._frontend.abort(request_id)

    async def sleep(self, level: int = 1, mode: PauseMode = "keep") -> None:
        """Give the memory of the device up until `wake_up`. Arguments and errors: see LLM.sleep."""
        await (await self.start()).engine_admin.sleep(level, mode)

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Undo `sleep`, for "weights" and then for "kv_cache", or for all."""
        await (await self.start()).engine_admin.wake_up(tags or ())

    async def is_sleeping(self) -> bool:
        """Return whether it sleeps, at whatever level."""
        return (await (await self.start()).engine_admin.state()).is_sleeping

    async def check_health(self) -> None:
        """Return if requests can be served now; Unavailable, saying why, otherwise."""
        await (await self.start()).check_health()

    async def close(self) -> None:
        """Fail what runs and stop the services that were started here."""
        async with self._starting:
            frontend, self._frontend = self._frontend, None
            if frontend is not None:
                await frontend.close()
            await self._services.close()

    def shutdown(self) -> None:
        """Let everything go without waiting: for `finally` blocks outside the event loop, as vLLM's programs have them."""
        self._services.abandon()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
