"""States: describes layers that keep a state of fixed size for each sequence, instead of keys and values of all its tokens.

A kind of state layer is described by its sizes; layers/states has the computation. All kinds begin with a causal convolution
over time, whose last inputs are a part of the state. A state is one row of float32 numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

GatedNorm = Literal["none", "after_gate", "before_gate"]
SelectionNorm = Literal["none", "unit", "weighted"]
_FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class ShortConvolution:
    """A layer with two gates around a convolution (LFM2): C * conv(B * x).

    Attributes:
        size: number of channels.
        kernel: number of tokens that the convolution reads, the current one included.
    """

    size: int
    kernel: int

    @property
    def conv_size(self) -> int:
        """The number of channels of the convolution."""
        return self.size

    @property
    def parts(self) -> Mapping[str, int]:
        """The parts of the input product, and their numbers of outputs."""
        return {"in_b_proj": self.size, "in_c_proj": self.size, "in_x_proj": self.size}

    @property
    def state_size(self) -> int:
        """The number of values in a state."""
        return (self.kernel - 1) * self.size


@dataclass(frozen=True, slots=True)
class Mamba1:
    """A selective state space (Gu and Dao, "Mamba", 2023): each channel has values that decay by a time step of its own.

    Attributes:
        size: number of channels.
        state_dim: number of values in the state for each channel.
        step_rank: number of values of which the time steps of all channels are a product.
        kernel: number of tokens that the convolution reads, the current one included.
        selection_norm: the norms of these values, of B and of C: RMSNorms with or without weights; "none": no norms.
        norm_eps: epsilon of these norms.
    """

    size: int
    state_dim: int
    step_rank: int
    kernel: int
    selection_norm: SelectionNorm = "none"
    norm_eps: float = 0.0

    @property
    def conv_size(self) -> int:
        """The number of channels of the convolution."""
        return self.size

    @property
    def parts(self) -> Mapping[str, int]:
        """The parts of the input product, and their numbers of outputs."""
        return {"in_x_proj": self.size, "in_gate_proj": self.size}

    @property
    def state_size(self) -> int:
        """The number of values in a state."""
        return (self.kernel - 1) * self.size + self.size * self.state_dim


@dataclass(frozen=True, slots=True)
class Mamba2:
    """A state-space layer (Dao and Gu, "Transformers are SSMs", 2024): each head has a matrix that decays and is added to.

    Attributes:
        num_heads, head_dim: the layer has num_heads * head_dim dimensions.
        state_dim: number of values in the state for each of these dimensions.
        num_groups: number of groups; heads of a group share B and C, which write and read the state, and are normed together.
        kernel: number of tokens that the convolution reads, the current one included.
        gated_norm: the norm of the outputs, before or after the product with the gate; "none": only the gate.
        min_step, max_step: bounds of the time step.
    """

    num_heads: int
    head_dim: int
    state_dim: int
    num_groups: int
    kernel: int
    gated_norm: GatedNorm = "after_gate"
    min_step: float = 0.0
    max_step: float = float("inf")

    @property
    def size(self) -> int:
        """The number of dimensions of all heads."""
        return self.num_heads * self.head_dim

    @property
    def conv_size(self) -> int:
        """The number of channels of the convolution: x, B, C."""
        return self.size + 2 * self.num_groups * self.state_dim

    @property
    def parts(self) -> Mapping[str, int]:
        """The parts of the input product, and their numbers of outputs."""
        shared = self.num_groups * self.state_dim
        sizes = {"in_gate_proj": self.size, "in_x_proj": self.size, "in_b_proj": shared, "in_c_proj": shared}
        return sizes | {"in_step_proj": self.num_heads}

    @property
    def state_size(self) -> int:
        """The number of values in a state."""
        return (self.kernel - 1) * self.conv_size + self.size * self.state_dim


@dataclass(frozen=True, slots=True)
class GatedDeltaRule:
    """A gated delta net (Yang et al., "Gated Delta Networks", 2024): a matrix that decays, and is corrected towards each value.

    Attributes:
        num_key_heads, key_dim: heads of queries and keys; each serves the same number of value heads.
        num_value_heads, value_dim: heads of values.
        kernel: number of tokens that the convolution reads, the current one included.
        are_keys_in_turns: whether value head v uses key head v % num_key_heads; otherwise, value heads that share a key head
            are neighbours.
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    are_keys_in_turns: bool = False

    @property
    def size(self) -> int:
        """The number of dimensions of all value heads."""
        return self.num_value_heads * self.value_dim

    @property
    def conv_size(self) -> int:
        """The number of channels of the convolution: queries, keys, values."""
        return 2 * self.num_key_heads * self.key_dim + self.size

    @property
    def parts(self) -> Mapping[str, int]:
        """The parts of the input product, and their numbers of outputs."""
        keys, heads = self.num_key_heads * self.key_dim, self.num_value_heads
        sizes = {"in_query_proj": keys, "in_key_proj": keys, "in_value_proj": self.size, "in_gate_proj": self.size}
        return sizes | {"in_beta_proj": heads, "in_decay_proj": heads}

    @property
    def state_size(self) -> int:
        """The number of values in a state."""
        return (self.kernel - 1) * self.conv_size + self.size * self.key_dim


State = ShortConvolution | Mamba1 | Mamba2 | GatedDeltaRule


def bytes_per_draft(state: State, itemsize: int) -> int:
    """Return the bytes that a layer keeps of a draft until its step is verified.

    Args:
        state: the description of the layer.
        itemsize: bytes of an output of the input product.
    """
    if isinstance(state, Mamba1):  # x before and after the convolution, gates and time steps, B, C
        return (4 * state.size + 2 * state.state_dim) * _FLOAT32_BYTES
    return sum(state.parts.values()) * itemsize


def bytes_per_token(state: State, itemsize: int) -> int:
    """Return about how many bytes a layer needs for each token of a step, between the product before and the one behind.

    The inputs are there as the product stores them and as float32; besides, the convolution and the gate keep what they read
    and what they return. Measured peaks of the four kinds are 0 to 15 % above.

    Args:
        state: the description of the layer.
        itemsize: bytes of an output of the input product.
    """
    inputs = sum(state.parts.values()) * (itemsize + _FLOAT32_BYTES)
    return inputs + 2 * (state.size + state.conv_size) * _FLOAT32_BYTES
