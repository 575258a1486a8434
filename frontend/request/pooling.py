"""Pooling: parameters and answers of requests that make an embedding, classes or a score of a prompt. vLLM's names.

Public Python types: used by AsyncLLM, the library and the HTTP API.
"""

from array import array
from dataclasses import dataclass, replace
from typing import Any

from tetrad.frontend.request.sampling_values import check_flag, check_integer
from tetrad.services.errors import InvalidRequest, TetradError, Unsupported

EMBED, CLASSIFY, TOKEN_EMBED, TOKEN_CLASSIFY = "embed", "classify", "token_embed", "token_classify"
TASKS = (EMBED, CLASSIFY, TOKEN_EMBED, TOKEN_CLASSIFY)

_ANY_LENGTH = 2**31 - 1
_ENDPOINTS = {EMBED: "/v1/embeddings", CLASSIFY: "/classify"}


@dataclass(slots=True, kw_only=True)
class PoolingParams:
    """The parameters of a pooling request for one prompt.

    Attributes:
        task: "embed", "classify", "token_embed" or "token_classify"; None: the model's first task.
        use_activation: normalise embeddings, or convert logits to probabilities. None: as the model's files specify.
        dimensions: length of the embedding, for models with Matryoshka embeddings; None: the model's length.
        token_type_boundary: index of the first token of type 1, for cross-encoders; None: all are of type 0.
    """

    task: str | None = None
    use_activation: bool | None = None
    dimensions: int | None = None
    token_type_boundary: int | None = None

    def verify(self, facts: "PoolingFacts") -> "PoolingParams":
        """Return the parameters with the task filled in; Unsupported or InvalidRequest if the model cannot serve them."""
        self._check_types()
        task = self.task or facts.tasks[0]
        if task not in facts.tasks:
            raise Unsupported(f"Unsupported task: {task!r} Supported tasks: {list(facts.tasks)}", field="task")
        if self.dimensions is not None:
            self._check_dimensions(self.dimensions, task, facts)
        return replace(self, task=task)

    def with_task(self, task: str | None) -> "PoolingParams":
        """Return the parameters with this task; InvalidRequest if they have another one. None: return them unchanged."""
        if task is None:
            return self
        if self.task not in (None, task):
            raise InvalidRequest(f"pooling_params are for the task {self.task!r}, and this call is for {task!r}.", field="task")
        return replace(self, task=task)

    def _check_types(self) -> None:
        if self.use_activation is not None:
            check_flag("use_activation", self.use_activation)
        if self.dimensions is not None:
            check_integer("dimensions", self.dimensions)
        boundary = self.token_type_boundary
        if boundary is not None:
            check_integer("token_type_boundary", boundary)
            if not 0 <= boundary <= _ANY_LENGTH:
                text = f"token_type_boundary must be in [0, {_ANY_LENGTH}], got {boundary}."
                raise InvalidRequest(text, field="token_type_boundary")

    @staticmethod
    def _check_dimensions(dimensions: int, task: str, facts: "PoolingFacts") -> None:
        problem = ""
        if task not in (EMBED, TOKEN_EMBED):
            problem = f"Task {task!r} only supports ['use_activation'] parameters, does not support ['dimensions'] parameters"
        elif not facts.is_matryoshka:
            problem = (
                "The model does not support Matryoshka embeddings; dimensions must be unset "
                f"(received dimensions={dimensions})."
            )
        elif facts.matryoshka_dimensions and dimensions not in facts.matryoshka_dimensions:
            lengths = list(facts.matryoshka_dimensions)
            problem = f"The model only supports Matryoshka dimensions {lengths}, got {dimensions}."
        elif not 1 <= dimensions <= facts.embedding_size:
            problem = f"The model only supports dimensions in range [1, {facts.embedding_size}], got {dimensions}."
        if problem:
            raise InvalidRequest(problem, field="dimensions")


@dataclass(frozen=True, slots=True)
class PoolingFacts:
    """The facts of a pooling model; see PoolingInfo in types.proto."""

    tasks: tuple[str, ...]
    embedding_size: int
    is_matryoshka: bool
    matryoshka_dimensions: tuple[int, ...]
    labels: tuple[str, ...]
    num_labels: int
    is_causal: bool
    generates: bool = False
    chunked_processing: bool = False
    max_embed_len: int = 0

    def longest_prompt(self, task: str | None, max_model_len: int) -> int:
        """Return the maximum number of prompt tokens for a task; the model computes `max_model_len` tokens at a time."""
        if task != EMBED:
            return max_model_len
        if self.chunked_processing:
            return self.max_embed_len or _ANY_LENGTH
        return min(self.max_embed_len or max_model_len, max_model_len)

    @property
    def endpoint(self) -> str:
        """The HTTP endpoint of the model's first task."""
        return _ENDPOINTS.get(self.tasks[0], "/pooling")


def required_facts(
    facts: PoolingFacts | None, task: str, what: str, error: type[TetradError] = InvalidRequest, *, use: str, hint: str = ""
) -> PoolingFacts:
    """Return the facts of a pooling model; if it does not have the task, raise an error that names its endpoint.

    Args:
        facts: the facts of the model; None: it pools nothing.
        task: the task that is needed.
        what: name of the requested feature, for the message.
        error: class of the error.
        use: what a model that pools nothing does and the endpoint for it, for the message.
        hint: end of the message: names other models that have the task.
    """
    if facts is None:
        text = f"The model does not support {what}: {use}{hint}"
        raise error(text, field="model")
    if task not in facts.tasks:
        text = f"The model does not support {what}: it has the tasks {', '.join(facts.tasks)}. Use {facts.endpoint}.{hint}"
        raise error(text, field="model")
    return facts


@dataclass(frozen=True, slots=True)
class PooledTensor:
    """Values in float32, row-major.

    Attributes:
        shape: (width,), or (tokens, width) for tasks of tokens.
        values: the values; their number is the product of the shape.
    """

    shape: tuple[int, ...]
    values: "array[float]"

    def to_list(self) -> list[Any]:
        """Return the values as a list, or one list per token."""
        values = self.values.tolist()
        if len(self.shape) == 1:
            return values
        width = self.shape[1]
        return [values[start : start + width] for start in range(0, len(values), width)]


@dataclass(slots=True)
class PoolingRequestOutput:
    """The answer of a pooling request.

    Attributes:
        outputs: the embedding, classes or score.
        prompt_token_ids: the ids of the prompt.
        num_cached_tokens: number of prompt tokens found in the prefix cache.
    """

    request_id: str
    outputs: PooledTensor
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True
