"""GGUF facts: the metadata of a GGUF file for its architecture, and the presence of tensors.

Read by the conversions in gguf_configs.py and gguf_metadata.py.
"""

from collections.abc import Callable
from typing import Any

from tetrad.services.errors import ModelError
from tetrad.worker_svc.families.values import number_of_layers


class Facts:
    """The metadata of a file's architecture, and the presence of tensors in the file.

    Args:
        name: name of the architecture.
        field: returns the value of a metadata key, or None.
        has: returns whether the file has a tensor.
    """

    def __init__(self, name: str, field: Callable[[str], Any], has: Callable[[str], bool]) -> None:
        self._name, self._field, self.has = name, field, has

    def __call__(self, key: str) -> Any:
        """Return the value of one of the architecture's keys, or None."""
        return self._field(f"{self._name}.{key}")

    @property
    def num_layers(self) -> int:
        """The number of layers, without MTP layers, which predict several tokens; ModelError if it is out of range."""
        count, num_mtp = self("block_count"), self("nextn_predict_layers")
        try:
            number = int(count or 0) - int(num_mtp or 0)
        except (TypeError, ValueError, OverflowError):
            raise self.refuse(f"with block_count {str(count)[:40]!r} and nextn_predict_layers {str(num_mtp)[:40]!r}") from None
        return number_of_layers("num_layers", number, least=1)

    def has_in_layers(self, name: str) -> bool:
        """Return whether one of the layers has a tensor."""
        return any(self.has(f"blk.{layer}.{name}") for layer in range(self.num_layers))

    def refuse(self, what: str) -> ModelError:
        """Return the error for a variant of the architecture that is not supported."""
        return ModelError(f"GGUF {self._name} {what} is not supported.")
