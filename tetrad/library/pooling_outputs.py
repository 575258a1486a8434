"""Pooling outputs: the answers of pooling models, with vLLM's names. Public Python types; values are lists, not tensors."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tetrad.frontend.request.pooling import PoolingRequestOutput

T = TypeVar("T")


@dataclass(slots=True)
class PoolingOutput:
    """Values of a pooling task: a list, or one list per token."""

    data: list[Any]


@dataclass(slots=True)
class EmbeddingOutput:
    """An embedding."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """The length of the embedding."""
        return len(self.embedding)


@dataclass(slots=True)
class ClassificationOutput:
    """The probability of each class."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.probs)


@dataclass(slots=True)
class ScoringOutput:
    """The score of a pair; a larger value is better."""

    score: float


@dataclass(slots=True)
class PooledRequestOutput(Generic[T]):
    """The answer to one prompt.

    Attributes:
        outputs: EmbeddingOutput, ClassificationOutput, ScoringOutput or PoolingOutput.
        num_cached_tokens: number of prompt tokens found in the prefix cache.
    """

    request_id: str
    outputs: T
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True


EmbeddingRequestOutput = PooledRequestOutput[EmbeddingOutput]
ClassificationRequestOutput = PooledRequestOutput[ClassificationOutput]
ScoringRequestOutput = PooledRequestOutput[ScoringOutput]


def pooled_answer(output: PoolingRequestOutput, value: T) -> PooledRequestOutput[T]:
    """Return an answer of the frontend with its values as the output type of a task."""
    return PooledRequestOutput(output.request_id, value, output.prompt_token_ids, output.num_cached_tokens)
