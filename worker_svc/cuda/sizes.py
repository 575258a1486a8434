"""Sizes of a model that the CUDA runner and its attention read."""

from typing import Protocol


class DeviceSizes(Protocol):
    """The sizes of a model; a ModelConfig has them. The heads are those of the KV cache."""

    @property
    def vocab_size(self) -> int:
        """The vocabulary size; token ids are below it."""

    @property
    def hidden_size(self) -> int:
        """The size of a hidden state."""

    @property
    def max_position_embeddings(self) -> int:
        """The number of tokens in the longest sequence."""

    @property
    def embedding_size(self) -> int:
        """The size of embeddings that may replace token ids; 0: not supported."""

    @property
    def num_heads(self) -> int:
        """The number of query heads."""

    @property
    def num_kv_heads(self) -> int:
        """The number of key and value heads."""

    @property
    def head_dim(self) -> int:
        """The size of a head."""
