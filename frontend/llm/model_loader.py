"""ModelLoader: loads and unloads further models while a frontend runs, for its operators.

Loading connects services that run already; the loader starts and stops no process. Its changes last until the frontend ends: a
restarted frontend serves the models of its settings.
"""

import asyncio
import contextvars
from collections.abc import Iterable
from typing import Any

from tetrad.frontend.further_models import FurtherModel, names_of
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.model_directory import ModelDirectory
from tetrad.frontend.llm.readiness import draining_error
from tetrad.services.errors import AlreadyExists, FailedPrecondition, InvalidRequest, TetradError
from tetrad.services.log import get_logger
from tetrad.services.rpc.carrier import GRPC, Carrier

log = get_logger()

_SHARED_PORT = (
    "Models are loaded and unloaded only where one frontend serves the port: this one shares it with others"
    " (--api-server-count of tetrad serve, peers-dir of a frontend), which would not know of the change. Change further-models"
    " (--also of tetrad serve) and restart instead."
)


class ModelLoader:
    """Loads and unloads the models of one frontend.

    Args:
        models: the models that the frontend serves.
        carrier: the carrier that connects the services of loaded models.
    """

    def __init__(self, models: ModelDirectory, carrier: Carrier = GRPC) -> None:
        self._models = models
        self._carrier = carrier
        self._loading: set[str] = set()

    async def load(self, model: FurtherModel) -> None:
        """Connect the services of a model and serve it; a failure changes nothing.

        Raises:
            AlreadyExists: a model has one of its names, or is being loaded under it.
            InvalidRequest: its services do not fit each other or this frontend, or other frontends share the port.
            Unavailable: the services are not ready within recovery_timeout_s, or this frontend is starting or shutting down.
        """
        self._check_alone()
        self._models.readiness.check_started()
        names = dict.fromkeys(names_of(model.served_model_names, model.lora_modules, model.default_mm_loras))
        self._check_free(names)
        if being_loaded := next(filter(self._loading.__contains__, names), None):
            raise AlreadyExists(f"The model `{being_loaded}` is being loaded.", field="served_model_names")
        self._loading.update(names)
        try:
            await self._connect(model, names)
        except FailedPrecondition as error:
            raise InvalidRequest(error.message, reason=error.reason) from error
        finally:
            self._loading.difference_update(names)
        log.info("frontend.model_loaded", model=model.served_model_names[0])

    async def unload(self, name: str) -> None:
        """Stop serving a model; return when its calls have ended, within drain_timeout_s, and its connections are closed.

        Raises:
            NotFound: no model has this name.
            InvalidRequest: the name is that of the first model or of an adapter, or other frontends share the port.
        """
        self._check_alone()
        self._models.readiness.check_started()
        llm = next((each for each in self._models if name in each.served_names), None)
        if llm is None:
            raise self._unknown(name)
        if llm is self._models.first:
            text = (
                f"The model `{name}` is the first one of this frontend, which serves requests that name no model; only further"
                " models can be unloaded."
            )
            raise InvalidRequest(text, field="model")
        await self._models.remove(llm, llm.settings.drain_timeout_s)
        log.info("frontend.model_unloaded", model=llm.served_names[0])

    async def _connect(self, model: FurtherModel, names: Iterable[str]) -> None:
        first, leaving = self._models.first, self._models.readiness.leaving
        llm = AsyncLLM(first.settings.of_further(model), self._carrier, first.shared)
        # The model outlives this call, so its tasks must not inherit the call's id or its deadline.
        start = llm.start_within(first.settings.recovery_timeout_s)
        starting = asyncio.create_task(start, name=f"start of {model.served_model_names[0]}", context=contextvars.Context())
        ending = asyncio.create_task(leaving.wait())
        try:
            await asyncio.wait({starting, ending}, return_when=asyncio.FIRST_COMPLETED)
            if leaving.is_set():
                raise draining_error()
            await starting
            self._check_free(names)  # an adapter may have taken one of the names meanwhile
            self._models.add(llm)
        except BaseException:
            await _cancelled(starting)
            await llm.close()
            raise
        finally:
            await _cancelled(ending)

    def _check_alone(self) -> None:
        if self._models.first.settings.peers_dir is not None:
            raise InvalidRequest(_SHARED_PORT)

    def _check_free(self, names: Iterable[str]) -> None:
        for name in names:
            owner = self._models.owner_of(name)
            if owner in self._models.retiring:
                text = f"The model `{name}` is being unloaded; load it when its last requests have ended."
                raise AlreadyExists(text, field="served_model_names")
            if owner is not None:
                text = f"The name `{name}` is taken by the model `{owner.served_names[0]}`; each model needs names of its own."
                raise AlreadyExists(text, field="served_model_names")

    def _unknown(self, name: str) -> TetradError:
        owner = self._models.owner_of(name)
        if owner is None or owner in self._models.retiring:
            return self._models.unknown(name)
        text = f"`{name}` is an adapter of the model `{owner.served_names[0]}`; /v1/unload_lora_adapter unloads it."
        return InvalidRequest(text, field="model")


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
