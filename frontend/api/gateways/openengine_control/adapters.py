"""Adapters: loads, unloads and lists the LoRA adapters of a model by OpenEngine's rules. The client chooses their ids."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.model_directory import ModelDirectory
from tetrad.frontend.request.outputs import LoRARequest
from tetrad.openengine_api import control_pb2
from tetrad.services.errors import AlreadyExists, FailedPrecondition, InvalidRequest, NotFound

_MAX_ID = 2**32 - 1


class LoraAdapters:
    """The adapters that requests may name, which are those of the first model.

    Args:
        models: the served models; an adapter must not have the name of one.
    """

    def __init__(self, models: ModelDirectory) -> None:
        self._models = models

    async def load(self, message: control_pb2.LoraAdapter) -> bool:
        """Load an adapter into every engine core; return whether the same adapter was already loaded.

        Raises:
            InvalidRequest: a value is missing or out of range.
            AlreadyExists: another adapter or a model has the same name or id.
            FailedPrecondition: the server does not support loading of adapters.
            NotFound, ModelError: the adapter does not exist, or cannot be used.
        """
        llm = self._updatable()
        wanted = _decoded(message)
        async with llm.adapters.changing:
            known = llm.model_names.adapters.get(wanted.lora_name)
            if known is not None and (known.lora_int_id, known.lora_path) == (wanted.lora_int_id, wanted.lora_path):
                return True
            self._check_free(llm, wanted, known)
            await llm.adapters.load(wanted)
            llm.model_names.adapters.add(wanted)
        return False

    async def unload(self, name: str) -> control_pb2.LoraAdapter:
        """Unload an adapter and return its description.

        Raises:
            NotFound: there is no such adapter.
            FailedPrecondition: the server does not support unloading of adapters, or unfinished requests use this one.
        """
        llm = self._updatable()
        async with llm.adapters.changing:
            known = llm.model_names.adapters.get(name)
            if known is None:
                raise NotFound(f"The adapter `{name}` does not exist.", field="lora_name")
            await llm.adapters.unload(known.lora_int_id)
            llm.model_names.adapters.remove(name)
        return _encoded(known)

    def __iter__(self) -> Iterator[control_pb2.LoraAdapter]:
        """Iterate over the descriptions of the adapters."""
        return map(_encoded, self._models.first.model_names.adapters)

    def _updatable(self) -> AsyncLLM:
        llm = self._models.first
        if not llm.settings.allow_runtime_lora_updating:
            raise FailedPrecondition("Adapters change at runtime only with --allow-runtime-lora-updating.")
        if not llm.engine_info.supports_lora:
            raise FailedPrecondition("Adapters need an engine core that was started with --enable-lora.")
        return llm

    def _check_free(self, llm: AsyncLLM, wanted: LoRARequest, known: LoRARequest | None) -> None:
        name = wanted.lora_name
        if (
            any(name in other.all_names for other in self._models.started() if other is not llm)
            or name in llm.model_names.names
        ):
            raise AlreadyExists(f"`{name}` is a model or an adapter of another model.", field="lora_name")
        if known is not None:
            text = f"The adapter `{name}` has the id {known.lora_int_id} and the path {known.lora_path!r}; unload it first."
            raise AlreadyExists(text, field="lora_name")
        owner = next((each for each in llm.model_names.adapters if each.lora_int_id == wanted.lora_int_id), None)
        if owner is not None:
            text = f"The id {wanted.lora_int_id} is that of the adapter `{owner.lora_name}`."
            raise AlreadyExists(text, field="lora_id")


def _decoded(message: control_pb2.LoraAdapter) -> LoRARequest:
    if not message.lora_name:
        raise InvalidRequest("lora_name must not be empty.", field="adapter.lora_name")
    if not 1 <= message.lora_id <= _MAX_ID:
        raise InvalidRequest(f"lora_id must be in [1, {_MAX_ID}], got {message.lora_id}.", field="adapter.lora_id")
    if not PurePosixPath(message.source_path).is_absolute():
        text = f"source_path must be an absolute directory, got {message.source_path[:200]!r}."
        raise InvalidRequest(text, field="adapter.source_path")
    return LoRARequest(message.lora_name, message.lora_id, message.source_path)


def _encoded(lora: LoRARequest) -> control_pb2.LoraAdapter:
    return control_pb2.LoraAdapter(lora_id=lora.lora_int_id, lora_name=lora.lora_name, source_path=lora.lora_path)
