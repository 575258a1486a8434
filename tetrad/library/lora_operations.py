"""LoRA operations: LLMEngine's methods that load, remove, list and pin adapters."""

from tetrad.frontend.request.outputs import LoRARequest
from tetrad.library.arguments import check_lora_request
from tetrad.library.running_llm import RunningLLM


class LoraOperations:
    """The methods of LLMEngine."""

    _running: RunningLLM

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Load an adapter into every engine core, and return True: requests can have it.

        Args:
            lora_request: with load_inplace, an adapter of the same id is replaced; requests under way keep theirs.

        Raises:
            NotFound, ModelError: there is no adapter, or it cannot be used with the model.
            AlreadyExists: the id is another adapter's.
        """
        check_lora_request(lora_request)
        self._running.run(self._running.frontend.adapters.load(lora_request))
        return True

    def remove_lora(self, lora_id: int) -> bool:
        """Forget an adapter and free its memory; return False if there is none.

        FailedPrecondition while unfinished requests have it.
        """
        return self._running.run(self._running.frontend.adapters.unload(lora_id))

    def list_loras(self) -> set[int]:
        """Return the ids of the adapters that are known."""
        return {lora.lora_int_id for lora in self._running.run(self._running.frontend.adapters.list())}

    def pin_lora(self, lora_id: int) -> bool:
        """Load an adapter and keep it in memory, whatever others are loaded; NotFound if there is none."""
        self._running.run(self._running.frontend.adapters.pin(lora_id))
        return True
