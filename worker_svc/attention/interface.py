"""Attention interface: the attention that a model's layers call on every device, and the metadata that a runner prepares.

A device's backend creates the attention of each layer when a model is loaded. In each step, metadata is built once for all
layers.
Contract: a layer writes the keys and values of the whole step before it reads any of them, because two requests of one step
may share prefix blocks that the same step fills.
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
        """Return the metadata of a group."""


class HeadSizes(NamedTuple):
    """The number and size of a layer's heads."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, eq=False, slots=True)
class AttentionShape:
    """The attention of one layer: softmax of softcap(q k^T * scale) + bias over the keys in the window, and the sink.

    Attributes:
        scale: factor of the products of queries and keys.
        window: number of keys that a query attends to, itself included; None: all.
        chunk: size of a chunk of positions; a query attends only to keys of its own chunk; None: no chunks.
        softcap: scores become softcap * tanh(score / softcap); 0: scores are not capped.
        sinks: [num_heads] float32, an extra score of each head, without a value; None: no sinks.
        slopes: [num_heads] float32: a head's bias is slope * (position of the key - position of the query); None: no biases.
        key_scale, value_scale: factors of stored keys and values in an fp8 cache.
        heads: the heads of this layer; None: those of the backend.
    """

    scale: float
    window: int | None = None
    softcap: float = 0.0
    sinks: torch.Tensor | None = None
    key_scale: float = 1.0
    value_scale: float = 1.0
    chunk: int | None = None
    heads: HeadSizes | None = None
    slopes: torch.Tensor | None = None


class LayerAttention(Protocol[M_contra]):
    """Paged attention of one layer; `M` is the type of the device's metadata."""

    def attend(self, query: torch.Tensor, key_value: torch.Tensor, cache: torch.Tensor, metadata: M_contra) -> torch.Tensor:
        """Write the step's keys and values into the layer's cache, then compute attention.

        Args:
            query: [T, num_heads * head_dim].
            key_value: [T, 2 * num_kv_heads * head_dim], keys before values.
            cache: the layer's cache [num_blocks, block_size, 2, num_kv_heads, head_dim], with the backend's heads. If the
                layer's heads are smaller, keys and values take the beginning of each slot.
            metadata: the metadata of this step and of the layer's KV group.

        Returns:
            The attention [T, num_heads * head_dim]; valid until the next call.
        """


class AttentionBackend(Protocol[M_contra]):
    """Creates the paged attention of layers on one device."""

    def layer(self, shape: AttentionShape) -> LayerAttention[M_contra]:
        """Return the attention of a layer; called while a model is loaded."""


class Tables(Protocol):
    """The block tables of a step's requests, as in an input batch."""

    @property
    def block_tables(self) -> npt.NDArray[Any]:
        """The block tables [G, slots, blocks] of G KV groups."""

    @property
    def block_size(self) -> int:
        """The number of tokens per block."""

    @property
    def num_drafts(self) -> npt.NDArray[Any]:
        """The number of drafts [slots] at the end of each request's tokens of the step."""


class MetadataBuilder(Protocol[M_co]):
    """Prepares the attention metadata of a step."""

    def build_metadata(self, inputs: StepInputs, batch: Tables) -> M_co:
        """Return the metadata that the layers of this step share, for each KV group."""
