"""Asynchronous LoRA operations: AsyncLLM's methods that load, remove, list and pin adapters."""

from tetrad.frontend.llm.async_llm import AsyncLLM as Frontend
from tetrad.frontend.request.outputs import LoRARequest
from tetrad.library.arguments import check_lora_request


class AsyncLoraOperations:
    """The methods of AsyncLLM; see LoraOperations for arguments and errors."""

    async def start(self) -> Frontend:
        """Start the services and the frontend, if they have not been started, and return the frontend."""
        raise NotImplementedError

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Load an adapter into every engine core."""
        check_lora_request(lora_request)
        await (await self.start()).adapters.load(lora_request)
        return True

    async def remove_lora(self, lora_id: int) -> bool:
        """Unload an adapter and free its memory; return False if it is not loaded."""
        return await (await self.start()).adapters.unload(lora_id)

    async def list_loras(self) -> set[int]:
        """Return the ids of all loaded adapters."""
        return {lora.lora_int_id for lora in await (await self.start()).adapters.list()}

    async def pin_lora(self, lora_id: int) -> bool:
        """Keep an adapter in memory, loading it if necessary; NotFound if it is unknown."""
        await (await self.start()).adapters.pin(lora_id)
        return True
