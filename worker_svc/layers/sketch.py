"""Sketch: the parameters of a model without values, to find the modules of a model.

A model that is built from them has tensors on torch's meta device: they have shapes but no memory, and the model cannot run.
"""

from collections.abc import Callable, Sequence

import torch

from tetrad.worker_svc.layers.linear import Linear
from tetrad.worker_svc.layers.parameters import Lookup

_META = torch.device("meta")


class SketchParameters:
    """Parameters without values; see Parameters.

    Args:
        has: returns whether the model has a tensor with a full name.
    """

    def __init__(self, has: Callable[[str], bool]) -> None:
        self.has = has

    def linear(
        self,
        names: Sequence[tuple[str, int]],
        in_features: int,  # noqa: ARG002 - of the protocol
        *,
        rotated: Sequence[bool] | None = None,  # noqa: ARG002 - of the protocol
        head_dim: int = 0,  # noqa: ARG002 - of the protocol
        rotary_dim: int | None = None,  # noqa: ARG002 - of the protocol
    ) -> Linear:
        """See Parameters."""
        outputs = sum(size for _, size in names)
        return lambda x: torch.empty(len(x), outputs, device=_META)

    def scalar(self, name: str) -> float:  # noqa: ARG002 - of the protocol
        """See Parameters."""
        return 1.0

    def vector(self, name: str, size: int) -> torch.Tensor:  # noqa: ARG002 - of the protocol
        """See Parameters."""
        return torch.empty(size, device=_META)

    def constants(self, values: Sequence[float]) -> torch.Tensor:
        """See Parameters."""
        return torch.empty(len(values), device=_META)

    def embedding(self, name: str, rows: int, columns: int) -> torch.Tensor:  # noqa: ARG002 - of the protocol
        """See Parameters."""
        return torch.empty(rows, columns, device=_META)

    def lookup(self, name: str, table: torch.Tensor) -> Lookup:  # noqa: ARG002 - of the protocol
        """See Parameters."""
        return table.__getitem__

    def output(self, name: str, table: torch.Tensor | None, rows: int, columns: int) -> Linear:  # noqa: ARG002 - of the protocol
        """See Parameters."""
        return self.linear([(name, rows)], columns)
