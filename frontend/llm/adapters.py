"""Adapters: loads, unloads, lists and pins the adapters that requests may name.

LoRA adapters are loaded in the engine cores, prompt adapters in this frontend. Called by operators' endpoints and the library.
"""

import asyncio
from collections.abc import Collection

from tetrad.frontend.engine.admin_client import EngineAdminClient
from tetrad.frontend.llm.adapter_names import AdapterNames
from tetrad.frontend.llm.prompt_adapters import PromptAdapters
from tetrad.frontend.request.outputs import LoRARequest
from tetrad.services.errors import FailedPrecondition


class Adapters:
    """The adapters of a frontend and its engine cores.

    Args:
        engine_admin: client of the engine cores' administration.
        prompts: the prompt adapters.

    Attributes:
        changing: guards the names of adapters while one is loaded or unloaded, so that no two adapters get the same name or id.
    """

    def __init__(self, engine_admin: EngineAdminClient, prompts: PromptAdapters) -> None:
        self._engine_admin, self._prompts = engine_admin, prompts
        self.changing = asyncio.Lock()

    async def load_named(self, names: AdapterNames, *, supports_lora: bool, of_media: Collection[str] = ()) -> None:
        """Load the adapters of the settings; raise if one is unusable.

        Without admin ports, or while an engine sleeps, the first request loads it.

        Args:
            names: the adapters.
            supports_lora: whether the engine cores support LoRA.
            of_media: the names of those that are for prompts with media.
        """
        named = [lora for lora in names if not await self._prompts.load(lora)]
        if named and not supports_lora:
            text = "lora_modules and default_mm_loras need an engine core that was started with --enable-lora."
            raise FailedPrecondition(text)
        if virtual := set(of_media).difference(lora.lora_name for lora in named):
            text = (
                f"The adapter of default_mm_loras for {min(virtual)} has virtual tokens, which are not compatible with media."
            )
            raise FailedPrecondition(text)
        try:
            self._engine_admin.check_targets()
        except FailedPrecondition:
            return
        for lora in named:
            try:
                await self._engine_admin.load_lora(lora)
            except FailedPrecondition as error:
                if error.reason != "SLEEPING":
                    raise

    async def learn(self, names: AdapterNames) -> None:
        """Add the adapters that the engine cores have: operators loaded them before this frontend was started, or elsewhere."""
        for lora in await self._engine_admin.list_loras():
            if names.get(lora.lora_name) is None:
                names.add(lora)

    async def load(self, lora: LoRARequest) -> None:
        """Load an adapter; raise the reason if it cannot be used. See PromptAdapters.load and EngineAdminClient.load_lora."""
        if not await self._prompts.load(lora):
            await self._engine_admin.load_lora(lora)

    async def unload(self, lora_id: int) -> bool:
        """Unload an adapter; return whether it was loaded. FailedPrecondition while unfinished requests use a LoRA adapter."""
        return self._prompts.remove(lora_id) or await self._engine_admin.unload_lora(lora_id)

    async def list(self) -> list[LoRARequest]:
        """Return all loaded adapters, each once."""
        return [*self._prompts, *await self._engine_admin.list_loras()]

    async def pin(self, lora_id: int) -> None:
        """Keep an adapter in memory; NotFound if it is not loaded."""
        if not self._prompts.pin(lora_id):
            await self._engine_admin.pin_lora(lora_id)
