"""LoRA weights: the matrices of an adapter, as read from its files."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True)
class LoraPair:
    """The change of one module: y += scale * b (a x).

    Attributes:
        a: [rank, inputs], in the type of the files.
        b: [outputs, rank], in the same type.
        scale: the scale of the module.
    """

    a: torch.Tensor
    b: torch.Tensor
    scale: float


@dataclass(frozen=True, slots=True)
class LoraWeights:
    """An adapter as read: the SHA-256 digest of its files, and the change of each module, by canonical name."""

    digest: bytes
    pairs: Mapping[str, LoraPair] = field(default_factory=dict)
