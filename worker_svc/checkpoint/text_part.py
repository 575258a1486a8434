"""Text part: reads the tensors of a text model inside a larger model, under the names of a separate text model."""

from collections.abc import Sequence

import torch

from tetrad.worker_svc.checkpoint.source import StoredMatrix, WeightSource
from tetrad.worker_svc.checkpoint.wrapped import WrappedSource
from tetrad.worker_svc.model_facts.tensor_names import TextPart

_MODEL, _HEAD = "model.", "lm_head."
_OTHERS = ("model.visual.", "model.vision_", "model.audio_", "model.multi_modal_")
"""Beginnings of the names of other parts of a model whose text model has the prefix "model."."""


class TextPartSource(WrappedSource):
    """A WeightSource of the text model's tensors of another source.

    Args:
        source: the files.
        parts: possible prefixes of the text model; the first one whose embeddings exist is used.
    """

    def __init__(self, source: WeightSource, parts: Sequence[TextPart]) -> None:
        super().__init__(source)
        found = [part for part in parts if source.has(f"{part.model}embed_tokens.weight")]
        self._part = (found or parts)[0]

    def has(self, name: str) -> bool:
        """Return whether the files have this tensor."""
        return self._source.has(self._inside(name))

    def unread(self) -> list[str]:
        """Return the names, in the files, of the text model's tensors that have not been loaded."""
        return [name for name in self._source.unread() if name.startswith(tuple(self._part)) and self._is_text(name)]

    def names(self) -> list[str]:
        """Return the tensors of the text model that have not been loaded, under the names of a separate text model."""
        model, head = self._part
        return [
            _MODEL + name.removeprefix(model) if name.startswith(model) else _HEAD + name.removeprefix(head)
            for name in self.unread()
        ]

    def load(self, name: str) -> tuple[torch.Tensor, int]:
        """Return the tensor in float32 and its bytes as stored."""
        return self._source.load(self._inside(name))

    def load_stored(self, name: str) -> torch.Tensor:
        """Return the tensor in its stored type."""
        return self._source.load_stored(self._inside(name))

    def load_quantized(self, name: str) -> tuple[StoredMatrix, int] | None:
        """Return the matrix as stored and its size in bytes; None if it is in floats."""
        return self._source.load_quantized(self._inside(name))

    def _inside(self, name: str) -> str:
        if name.startswith(_MODEL):
            return self._part.model + name.removeprefix(_MODEL)
        return self._part.head + name.removeprefix(_HEAD) if name.startswith(_HEAD) else name

    def _is_text(self, name: str) -> bool:
        # If the text model's prefix is "model.", other parts of the model have the same prefix.
        return self._part.model != _MODEL or not name.startswith(_OTHERS)
