"""Pooling facts: tasks, dimensions and limits of a pooling model, forwarded from the worker to the frontends."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolingFacts:
    """The fields of PoolingInfo in types.proto; see there."""

    tasks: tuple[str, ...]
    embedding_size: int
    is_matryoshka: bool
    matryoshka_dimensions: tuple[int, ...]
    labels: tuple[str, ...]
    is_causal: bool
    num_labels: int
    needs_all_tokens: bool = False
    generates: bool = False
    chunked_processing: bool = False
    max_embed_len: int = 0
