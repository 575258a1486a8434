"""Operands: the values that describe an operation of a program besides its buffers: uses of results, places and weights.

Used by the builder of programs and by all that write operations with it.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import torch

from tetrad.worker_svc.native.structures import HeadNorms


class Epilogue(IntEnum):
    """The use of a product's result: STORE stores it, ADD adds it to the target.

    GATE is for a paired matrix and stores activation(gate) * up; ACTIVATE stores activation(product). TOP stores only the
    largest output of each of the matrix's S spans, and its index: target [T, 2 S], see Program.top.
    """

    STORE = 0
    ADD = 1
    GATE = 2
    TOP = 3
    ACTIVATE = 4


NO_SITE = -1
"""Site number of operations that adapters do not change."""


class Adapted(NamedTuple):
    """The place where adapters change a product: the number of its site, and the buffer for its input times the adapters' A."""

    site: int
    shrunk: int


NOT_ADAPTED = Adapted(NO_SITE, 0)


@dataclass(frozen=True, slots=True)
class LayerPages:
    """The place of a layer's keys and values: index of its page in a block, KV group of its block tables, and its window."""

    place: int
    group: int = 0
    window: int | None = None  # number of keys that a query attends to; None: all


@dataclass(frozen=True, slots=True)
class QueryKeyNorms:
    """RMS norms of queries and keys: weights [head_dim] that all heads share, or weights of all heads' dimensions together."""

    kind: HeadNorms
    query: torch.Tensor
    key: torch.Tensor
    eps: float


class Shared(NamedTuple):
    """Buffers of a shared expert's outputs, and of the scores of its gate (None: no gate)."""

    outputs: int
    gate: int | None = None


@dataclass(frozen=True, slots=True)
class NormWeights:
    """The weights of an RMSNorm, or of a LayerNorm if `is_centered`; the bias may be None."""

    weight: torch.Tensor
    eps: float
    bias: torch.Tensor | None = None
    is_centered: bool = False
