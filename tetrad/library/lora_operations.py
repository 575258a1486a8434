"""LoRA operations: LLMEngine's methods that load, remove, list and pin adapters."""

from tetrad.frontend.request.outputs import LoRARequest
from tetrad.library.arguments import check_lora_request
from tetrad.library.running_llm import RunningLLM


class LoraOperations:
    """The methods of LLMEngine."""

    _running: RunningLLM

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Load an adapter into every engine core, so that requests can use it, and return True.

        Args:
            lora_request: with load_inplace, it replaces an adapter with the same id; unfinished requests keep the old one.

        Raises:
            NotFound, ModelError: the adapter does not exist or cannot be used with the model.
            AlreadyExists: another adapter has its id.
        """
        check_lora_request(lora_request)
        self._running.run(self._running.frontend.adapters.load(lora_request))
        return True

    def remove_lora(self, lora_id: int) -> bool:
        """Unload an adapter and free its memory; return False if it is not loaded.

        FailedPrecondition while unfinished requests use it.
        """
        return self._running.run(self._running.frontend.adapters.unload(lora_id))

    def list_loras(self) -> set[int]:
        """Return the ids of all loaded adapters."""
        return {lora.lora_int_id for lora in self._running.run(self._running.frontend.adapters.list())}

    def pin_lora(self, lora_id: int) -> bool:
        """Keep an adapter in memory, loading it if necessary, even if others are loaded; NotFound if it is unknown."""
        self._running.run(self._running.frontend.adapters.pin(lora_id))
        return True
