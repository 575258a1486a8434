"""Bare names: reads files whose names lack "model." or the family's prefix, as transformers writes a decoder without its
output layer.
"""

import torch

from tetrad.worker_svc.checkpoint.source import StoredMatrix, WeightSource
from tetrad.worker_svc.checkpoint.wrapped import WrappedSource
from tetrad.worker_svc.model_facts.tensor_names import Stored, TensorNames

_EMBEDDINGS = "model.embed_tokens"


class BareNames(WrappedSource):
    """A WeightSource with the tensors of another source, under names with a prefix.

    Args:
        source: the files.
        prefix: "model." or a family's prefix.
    """

    def __init__(self, source: WeightSource, prefix: str) -> None:
        super().__init__(source)
        self._prefix = prefix

    def has(self, name: str) -> bool:
        """Return whether the files have this tensor."""
        return self._source.has(name.removeprefix(self._prefix))

    def load(self, name: str) -> tuple[torch.Tensor, int]:
        """See WeightSource."""
        return self._source.load(name.removeprefix(self._prefix))

    def load_stored(self, name: str) -> torch.Tensor:
        """See WeightSource."""
        return self._source.load_stored(name.removeprefix(self._prefix))

    def load_quantized(self, name: str) -> tuple[StoredMatrix, int] | None:
        """See WeightSource."""
        return self._source.load_quantized(name.removeprefix(self._prefix))


def first_part(names: TensorNames) -> str:
    """Return the first part of the names in a family's files, such as "model.", which some files lack; "": there is none."""
    first, _, rest = _embeddings(names).partition(".")
    return f"{first}." if rest else ""


def with_prefix(source: WeightSource, names: TensorNames) -> WeightSource:
    """Return a source whose names have their first part, whether or not the names in the files have it."""
    prefix = first_part(names)
    is_bare = bool(prefix) and source.has(f"{_embeddings(names).removeprefix(prefix)}.weight")
    return BareNames(source, prefix) if is_bare else source


def _embeddings(names: TensorNames) -> str:
    return names.in_model.get(_EMBEDDINGS, Stored(_EMBEDDINGS)).name
