"""Asynchronous LoRA operations: AsyncLLM's methods that load, remove, list and pin adapters."""

from tetrad.frontend.llm.async_llm import AsyncLLM as Frontend
from tetrad.frontend.request.outputs import LoRARequest
from tetrad.library.arguments import check_lora_request


class AsyncLoraOperations:
    """The methods of AsyncLLM; see LoraOperations for arguments and errors."""

    async def start(self) -> Frontend:
        """Return the frontend, starting everything if that has not happened."""
        raise NotImplementedError

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Load an adapter into every engine core."""
        check_lora_request(lora_request)
        await (await self.start()).adapters.load(lora_request)
        return True

    async def remove_lora(self, lora_id: int) -> bool:
        """Forget an adapter and free its memory; return False if there is none."""
        return await (await self.start()).adapters.unload(lora_id)

    async def list_loras(self) -> set[int]:
        """Return the ids of the adapters that are known."""
        return {lora.lora_int_id for lora in await (await self.start()).adapters.list()}

    async def pin_lora(self, lora_id: int) -> bool:
        """Load an adapter and keep it in memory; NotFound if there is none."""
        await (await self.start()).adapters.pin(lora_id)
        return True
