"""Rules of embeddings: how a model takes items whose embeddings clients have computed themselves. Values; reads no tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tetrad.tokenizer_svc.media.items import Expansion, MediaError, ProcessedItem
from tetrad.tokenizer_svc.media.model_files import ModelFiles

EMBEDS = "embeds"
"""Name of the settings of an item that is embeddings, among those of its processor; no processor has it."""


@dataclass(frozen=True)
class EmbedsRules:
    """How one model takes embeddings of one modality.

    Attributes:
        name: name of their tensor, such as "image_embeds".
        size: number of values of an embedding, those of DeepStack layers included.
        grid: name of the tensor with times, rows and columns of patches; empty: the model needs none.
        expand: returns what replaces an item's placeholder; it gets the item and the number of its embeddings.
    """

    name: str
    size: int
    grid: str
    expand: Callable[[ProcessedItem, int], Expansion]

    def settings(self) -> Mapping[str, Any]:
        """Return the settings of an item for its process."""
        return {EMBEDS: {"name": self.name, "size": self.size, "grid": self.grid}}

    def expansion(self, item: ProcessedItem) -> Expansion:
        """Return what replaces the placeholder of an item. Raises MediaError if its grid has another size."""
        num_rows = item.shape(self.name)[0]
        found = self.expand(item, num_rows)
        if found.num_embeds != num_rows:
            grid = item.integers(self.grid)
            raise MediaError(f"{self.name} has {num_rows} embeddings; the {self.grid} {grid} is that of {found.num_embeds}")
        return found


def embeds_size(files: ModelFiles) -> int:
    """Return the number of values of an embedding; behind those of the text model's input are those of DeepStack layers."""
    text = files.config.get("text_config")
    found = (text if isinstance(text, dict) else {}).get("hidden_size") or files.config.get("hidden_size") or 0
    return int(found) * (1 + len(files.vision.get("deepstack_visual_indexes") or ()))
