"""Attention interface: the attention that a model's layers call on every device, and the metadata that a runner prepares.

A device's backend makes the attention of each layer when a model is loaded. Each step, metadata is built once for all layers.
Contract: a layer's keys and values of the whole step are written before any of them is read, because two requests of one step
may share prefix blocks that this very step fills.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy.typing as npt
import torch

from tetrad.worker_svc.core.step_inputs import StepInputs

M = TypeVar("M")
M_co = TypeVar("M_co", covariant=True)
M_contra = TypeVar("M_contra", contravariant=True)


class ByGroup(Protocol[M_co]):
    """The metadata of each KV group of layers with attention, by the group's number."""

    def __getitem__(self, group: int, /) -> M_co:
        """Return a group's."""


class HeadSizes(NamedTuple):
    """The heads of a layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, eq=False, slots=True)
class AttentionShape:
    """The attention of one layer: softmax of softcap(q k^T * scale) over the keys in the window, and the sink.

    Attributes:
        scale: of the products.
        window: keys that a query sees, itself included; None: all.
        chunk: positions are cut into chunks, and a query sees the keys of its own chunk; None: they are not.
        softcap: scores become softcap * tanh(score / softcap); 0: they stay.
        sinks: [num_heads] float32, a score of each head that has no value; None: there is none.
        key_scale, value_scale: of a cache in fp8: what a stored value is multiplied by.
        heads: of this layer; None: those of the backend.
    """

    scale: float
    window: int | None = None
    softcap: float = 0.0
    sinks: torch.Tensor | None = None
    key_scale: float = 1.0
    value_scale: float = 1.0
    chunk: int | None = None
    heads: HeadSizes | None = None


class LayerAttention(Protocol[M_contra]):
    """Paged attention of one layer; `M` is its device's metadata."""

    def attend(self, query: torch.Tensor, key_value: torch.Tensor, cache: torch.Tensor, metadata: M_contra) -> torch.Tensor:
        """Write the step's keys and values into the layer's cache, then attend.

        Args:
            query: [T, num_heads * head_dim].
            key_value: [T, 2 * num_kv_heads * head_dim], keys before values.
            cache: the layer's [num_blocks, block_size, 2, num_kv_heads, head_dim]; of a layer with smaller heads than the
                backend's, whose keys and values take the beginning of each slot, as the backend has it.
            metadata: of this step and the layer's KV group.

        Returns:
            [T, num_heads * head_dim]; valid until the next call.
        """


class AttentionBackend(Protocol[M_contra]):
    """Paged attention of one device."""

    def layer(self, shape: AttentionShape) -> LayerAttention[M_contra]:
        """Return the attention of a layer; called while a model is loaded."""


class Tables(Protocol):
    """Block tables of a step's requests, as an input batch has them."""

    @property
    def block_tables(self) -> npt.NDArray[Any]:
        """[G, slots, blocks]."""

    @property
    def block_size(self) -> int:
        """Tokens of a block."""


class MetadataBuilder(Protocol[M_co]):
    """Prepares a step for all layers."""

    def build_metadata(self, inputs: StepInputs, batch: Tables) -> M_co:
        """Return the metadata that the layers of this step share, for each KV group."""
