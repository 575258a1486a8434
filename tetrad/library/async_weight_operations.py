"""AsyncWeightOperations: AsyncLLM's methods that replace the weights of the served model.

weight_operations.py has the same methods for blocking programs.
"""

import asyncio
import functools
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Literal

from tetrad.frontend.engine.admin_client import PauseMode, mode_of
from tetrad.frontend.engine.weights_client import WeightsClient
from tetrad.frontend.llm.async_llm import AsyncLLM as Frontend
from tetrad.library.weight_files import NamedTensors, WeightFiles
from tetrad.services.errors import InvalidRequest


class AsyncWeightOperations:
    """The methods of AsyncLLM. See WeightOperations."""

    @functools.cached_property
    def weight_files(self) -> WeightFiles:
        """The files of the last update with tensors."""
        return WeightFiles()

    async def start(self) -> Frontend:
        """See AsyncOperations."""
        raise NotImplementedError

    async def update_weights_from_disk(
        self, model_path: str, weight_version: str | None = None, mode: PauseMode = "keep"
    ) -> str:
        """Replace the weights by those of another checkpoint; return their name. See LLM.update_weights_from_disk."""
        return await (await self._weights()).update(model_path, weight_version, mode_of(mode))

    async def update_weights_from_tensors(
        self, named_tensors: NamedTensors, weight_version: str | None = None, mode: PauseMode = "keep"
    ) -> str:
        """Replace the weights by tensors of this program; return their name. See LLM.update_weights_from_tensors."""
        with ExitStack() as stack:
            path = await asyncio.to_thread(stack.enter_context, self.weight_files.written(named_tensors))
            return await self.update_weights_from_disk(path, weight_version, mode)

    async def init_weight_transfer_engine(self, request: object) -> None:
        """Choose how weights reach the workers. See LLM.init_weight_transfer_engine."""
        await (await self._weights()).init(field_of(request, "init_info"))

    async def shutdown_weight_transfer_engine(self) -> None:
        """Do nothing: the backend "disk" holds nothing."""

    async def start_weight_update(self) -> None:
        """Begin an update; drop one that was begun and not finished."""
        await (await self._weights()).start()

    async def update_weights(self, request: object) -> None:
        """Name the new weights and check them. See LLM.update_weights."""
        await (await self._weights()).check(field_of(request, "update_info"))

    async def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Apply the weights that `update_weights` has named. See LLM.update_weights_from_disk."""
        await (await self._weights()).finish(weight_version)

    async def update_weight_version(self, new_version: str) -> None:
        """Give the present weights another name."""
        await (await self._weights()).name(new_version)

    async def get_weight_version(self) -> str:
        """Return the name of the weights. See LLM.get_weight_version."""
        return await (await self._weights()).version()

    async def _weights(self) -> WeightsClient:
        return (await self.start()).engine_admin.weights


def field_of(request: object, name: Literal["init_info", "update_info"]) -> Mapping[str, Any]:
    """Return a field of vLLM's request, which is an object or a dict. Raises InvalidRequest if it is no dict."""
    value = request.get(name, {}) if isinstance(request, Mapping) else getattr(request, name, None)
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{name} must be a dict, got {type(value).__name__}.", field=name)
    return value
