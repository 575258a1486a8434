"""Pooling spec: the parameters of one pooling request, and the check that the model supports them. Knows nothing of tensors."""

from dataclasses import dataclass, replace
from typing import Literal

from tetrad.services.errors import InvalidRequest, Unsupported

Task = Literal["embed", "classify", "token_embed", "token_classify"]
TASKS: tuple[Task, ...] = ("embed", "classify", "token_embed", "token_classify")


@dataclass(frozen=True, slots=True)
class PoolingSpec:
    """The parameters by which a prompt's hidden states are pooled.

    Attributes:
        task: the kind of answer.
        use_activation: normalise the embedding, or turn logits into probabilities. None: the default in the model's files.
        dimensions: length of the embedding; None: the model's default.
        token_type_boundary: index of the first token of type 1, for pairs of texts; None: all tokens are of type 0.
        step_tag_id: the answer has only the rows whose prompt token is this one; None: the model's default.
        returned_token_ids: indices of the logits' columns in the answer; empty: the model's default.
    """

    task: Task
    use_activation: bool | None = None
    dimensions: int | None = None
    token_type_boundary: int | None = None
    step_tag_id: int | None = None
    returned_token_ids: tuple[int, ...] = ()

    def with_defaults(self, defaults: "PoolingSpec") -> "PoolingSpec":
        """Return a copy where the unset values are those of `defaults`."""
        embeds = self.task in ("embed", "token_embed")
        return replace(
            self,
            dimensions=defaults.dimensions if embeds and self.dimensions is None else self.dimensions,
            step_tag_id=defaults.step_tag_id if self.step_tag_id is None else self.step_tag_id,
            returned_token_ids=self.returned_token_ids or defaults.returned_token_ids,
        )


@dataclass(frozen=True, slots=True)
class PoolingFacts:
    """The pooling tasks of a loaded model, and their properties.

    Attributes:
        tasks: the supported tasks, the default first.
        embedding_size: length of an embedding; 0: the model makes no embeddings.
        matryoshka: lengths that embeddings may be shortened to; empty: every length; None: no shortening.
        labels: names of the classes; empty: the model does not classify.
        is_causal: a token attends only to the tokens before it.
        needs_all_tokens: an answer needs the hidden states of all tokens, so a cached prefix has to be computed again.
        generates: the model generates as well.
        has_steps: answers per token contain only marked tokens (vLLM's STEP pooling).
        chunked_processing: the frontend cuts prompts of the task "embed" that are too long for the model; see PoolingInfo.
        max_embed_len: largest number of tokens in a prompt of the task "embed"; 0: see PoolingInfo.
    """

    tasks: tuple[Task, ...]
    embedding_size: int
    matryoshka: tuple[int, ...] | None
    labels: tuple[str, ...]
    is_causal: bool
    needs_all_tokens: bool = False
    generates: bool = False
    has_steps: bool = False
    chunked_processing: bool = False
    max_embed_len: int = 0

    def check(self, spec: PoolingSpec) -> None:
        """Raise Unsupported or InvalidRequest, with vLLM's texts, for a task or parameter that the model does not support."""
        if spec.task not in self.tasks:
            raise Unsupported(f"Unsupported task: {spec.task!r} Supported tasks: {list(self.tasks)}.", field="task")
        if not self.has_steps:
            for name, given in (("step_tag_id", spec.step_tag_id), ("returned_token_ids", spec.returned_token_ids or None)):
                if given is not None:
                    raise InvalidRequest(f"{name} needs a model whose pooling type is STEP.", field=name)
        if max(spec.returned_token_ids, default=0) >= (len(self.labels) or 1):
            raise InvalidRequest(
                f"returned_token_ids must be below the model's {len(self.labels)} columns, got {max(spec.returned_token_ids)}.",
                field="returned_token_ids",
            )
        if spec.dimensions is None:
            return
        if spec.task not in ("embed", "token_embed"):
            raise InvalidRequest(
                f"Task {spec.task!r} only supports ['use_activation'] parameters, does not support ['dimensions'] parameters",
                field="dimensions",
            )
        if self.matryoshka is None:
            raise InvalidRequest(
                "The model does not support Matryoshka embeddings; dimensions must be unset "
                f"(received dimensions={spec.dimensions}).",
                field="dimensions",
            )
        if self.matryoshka and spec.dimensions not in self.matryoshka:
            raise InvalidRequest(
                f"The model only supports Matryoshka dimensions {list(self.matryoshka)}, got {spec.dimensions}.",
                field="dimensions",
            )
        if not 1 <= spec.dimensions <= self.embedding_size:
            raise InvalidRequest(
                f"The model only supports dimensions in range [1, {self.embedding_size}], got {spec.dimensions}.",
                field="dimensions",
            )
