"""ModelDirectory: the models behind one address, found by the names that clients may use.

A frontend makes one directory and passes it to every API. The directory starts, drains and closes the models together; a model
that is not reachable does not keep the others from serving. ModelLoader adds and removes models later. The directory only knows
names; AsyncLLM does everything for a request.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Self

from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.joined_readiness import JoinedReadiness
from tetrad.frontend.llm.readiness import starting_error
from tetrad.frontend.llm.shared_resources import SharedResources
from tetrad.services.errors import NotFound
from tetrad.services.log import get_logger
from tetrad.services.observability.metrics import joined_registry, render
from tetrad.services.rpc.carrier import GRPC, Carrier

log = get_logger()


class ModelDirectory:
    """The served models; the first one answers requests that name no model.

    Args:
        llms: the models; at least one.
        shared: the resources that the models share; closed with them.
    """

    def __init__(self, llms: Sequence[AsyncLLM], shared: SharedResources) -> None:
        self._shared = shared
        self._llms = tuple(llms)
        self.first = self._llms[0]
        self.admission, self.tracer = shared.admission, shared.tracer
        self.recent = shared.recent
        self._by_name: dict[str, AsyncLLM] = {}
        self.readiness = JoinedReadiness()
        self.metrics = joined_registry(lambda: [llm.metrics.registry for llm in self._open])
        self._starting: dict[asyncio.Task[None], AsyncLLM] = {}
        self._retirements: dict[asyncio.Task[None], AsyncLLM] = {}
        shared.tasks.open(self)
        self._serve(self._llms)

    @classmethod
    def of(cls, settings: FrontendSettings, carrier: Carrier = GRPC) -> Self:
        """Return a directory of the models of these settings; `start` connects them."""
        shared = SharedResources(settings)
        directory = cls([AsyncLLM(each, carrier, shared) for each in settings.each_model()], shared)
        directory.first.metrics.watch(shared.admission)
        return directory

    @classmethod
    def alone(cls, llm: AsyncLLM) -> Self:
        """Return a directory of one model that has been started already."""
        directory = cls([llm], llm.shared)
        directory.readiness.note_started()
        return directory

    def __iter__(self) -> Iterator[AsyncLLM]:
        """Iterate over the present models; adding or removing models meanwhile does not change the iteration."""
        return iter(self._llms)

    @property
    def retiring(self) -> tuple[AsyncLLM, ...]:
        """The models that are being removed: no new call finds them, and their last calls still run."""
        return tuple(self._retirements.values())

    @property
    def _open(self) -> tuple[AsyncLLM, ...]:
        """The models that have connections: the served and the retiring ones."""
        return (*self._llms, *self.retiring)

    def started(self) -> list[AsyncLLM]:
        """Return the models whose services have been reached; Unavailable if there is none yet."""
        found = [llm for llm in self if llm.started]
        if not found:
            raise starting_error()
        return found

    def find(self, name: str | None) -> AsyncLLM:
        """Return the model with this name, or with an adapter of this name; None or an empty name: the first model.

        A single model is returned for any name, since AsyncLLM checks the name itself. The current task is noted as a caller of
        the model: removing the model waits until the task has ended.

        Raises:
            NotFound: there are several models, and none has the name.
        """
        found = self._by_name.get(name or "") or self._find_adapter(name or "")
        found.draining.callers.note()
        return found

    def owner_of(self, name: str) -> AsyncLLM | None:
        """Return the model with this name or an adapter of this name, retiring models included; None: the name is free."""
        by_adapter = (llm for llm in self._open if llm.started and llm.model_names.adapters.get(name) is not None)
        return next((llm for llm in self._open if name in llm.served_names), None) or next(by_adapter, None)

    def unknown(self, name: str) -> NotFound:
        """Return the error for a name that no model has."""
        known = ", ".join(name for llm in self for name in llm.served_names)
        text = f"The model `{name}` does not exist. Models of this server: {known}."
        return NotFound(text, field="model", reason="MODEL_NOT_FOUND")

    def add(self, llm: AsyncLLM) -> None:
        """Serve a model whose services are connected; it is drained and closed with the others."""
        self._serve((*self._llms, llm))

    async def remove(self, llm: AsyncLLM, timeout_s: float) -> None:
        """Remove a model: new calls do not find it, calls that have found it may end within `timeout_s`, then it is closed.

        The removal continues if the caller is cancelled.
        """
        retirement = asyncio.create_task(self._retire(llm, timeout_s), name=f"retirement of {llm.served_names[0]}")
        self._retirements[retirement] = llm
        self._serve([each for each in self if each is not llm])
        await asyncio.shield(retirement)

    @property
    def num_unfinished_requests(self) -> int:
        """The number of requests of all frontends that share the port; of other frontends, each of n outputs counts as one."""
        return sum(llm.num_unfinished_requests for llm in self._open) + self.admission.num_requests_of_others

    async def start(self) -> None:
        """Connect the services of all models; called once.

        With several models, the wait for the others ends recovery_timeout_s after the first one has been reached. Connecting
        continues for models that are missing then; their requests are refused with Unavailable until they have been reached.

        Raises:
            Unavailable: no model is reached within ready_timeout_s.
            FailedPrecondition: a model cannot be served; see AsyncLLM.connect.
        """
        await self._shared.start(self._render)
        if len(self._llms) == 1:
            await self.first.start()
        else:
            await self._start_several()
        self.readiness.note_started()

    async def _start_several(self) -> None:
        settings = self.first.settings
        self._starting = {asyncio.create_task(llm.start_within(None)): llm for llm in self}
        done, _ = await asyncio.wait(self._starting, timeout=settings.ready_timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise self.first.backends.not_ready(settings.ready_timeout_s)
        done, missing = await asyncio.wait(
            self._starting, timeout=settings.recovery_timeout_s, return_when=asyncio.FIRST_EXCEPTION
        )
        for task in done:
            task.result()
        for task in missing:
            log.warning("frontend.model_missing", model=self._starting[task].served_names[0])
            task.add_done_callback(self._note_late_start)

    def _note_late_start(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("frontend.model_failed", model=self._starting[task].served_names[0], error=str(error))

    async def render_metrics(self) -> bytes:
        """Return the metrics of all frontends that share a port, in Prometheus' text format."""
        return await self._shared.merged_metrics(self._render())

    def withdraw(self) -> None:
        """Report unhealthy from now on, so that load balancers choose other frontends; requests are still accepted."""
        for llm in self:
            llm.draining.withdraw()
        self.readiness.note_draining()

    async def wait_idle(self) -> None:
        """Wait until no request runs."""
        for llm in self._open:
            await llm.wait_idle()

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests, let running requests finish within `timeout_s`, and fail the rest with Unavailable."""
        self.readiness.note_draining()
        await asyncio.gather(*(llm.draining.drain(timeout_s) for llm in self._open))

    async def close(self) -> None:
        """Fail the running requests and close all connections."""
        tasks = [*self._starting, *self._retirements]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(llm.close() for llm in self._open))
        await self._shared.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _retire(self, llm: AsyncLLM, timeout_s: float) -> None:
        try:
            starting = [task for task, each in self._starting.items() if each is llm]
            for task in starting:
                task.cancel()
            await asyncio.gather(*starting, return_exceptions=True)
            await llm.draining.retire(timeout_s, llm.served_names[0])
        finally:
            await llm.close()
            self._retirements = {task: each for task, each in self._retirements.items() if each is not llm}

    def _serve(self, llms: Sequence[AsyncLLM]) -> None:
        self._llms = tuple(llms)
        self._by_name = {"": self.first} | {name: llm for llm in self for name in llm.served_names}
        self.readiness.open({next(iter(llm.served_names), ""): llm.readiness for llm in self})

    def _find_adapter(self, name: str) -> AsyncLLM:
        if len(self._llms) == 1:
            return self.first
        found = next((llm for llm in self if llm.started and llm.model_names.adapters.get(name) is not None), None)
        if found is None:
            raise self.unknown(name)
        return found

    def _render(self) -> bytes:
        return render(self.metrics)
