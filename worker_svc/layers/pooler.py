"""Pooler: makes the answers of prompts from their hidden states."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tetrad.worker_svc.checkpoint.pooler_config import PoolingType
from tetrad.worker_svc.core.plan import Floats, Ints
from tetrad.worker_svc.core.pooling import PoolingSpec, Task
from tetrad.worker_svc.layers.gathering import GATHERINGS, AllRows, Gathering

Head = Callable[[torch.Tensor, PoolingSpec], torch.Tensor]

_OF_TOKENS: tuple[Task, ...] = ("token_embed", "token_classify")


@dataclass(frozen=True, slots=True)
class PoolingPrompt:
    """A prompt that is pooled.

    Attributes:
        spec: what the request asks for.
        token_ids: [L].
        gathering: keeps its hidden states.
    """

    spec: PoolingSpec
    token_ids: Ints
    gathering: Gathering


class Pooler:
    """Pools prompts.

    Args:
        pooling: which rows stand for a prompt.
        heads: by task; a task without one is not supported, and is refused before.
        defaults: values of requests that name none.
    """

    def __init__(self, pooling: PoolingType, heads: Mapping[Task, Head], defaults: PoolingSpec) -> None:
        self._gathering, self._heads, self._defaults = GATHERINGS[pooling], heads, defaults

    def prompt(self, spec: PoolingSpec, token_ids: Ints) -> PoolingPrompt:
        """Return a prompt of which nothing is computed yet."""
        spec = spec.with_defaults(self._defaults)
        return PoolingPrompt(spec, token_ids, AllRows() if spec.task in _OF_TOKENS else self._gathering())

    def answers(self, prompts: Sequence[PoolingPrompt]) -> list[Floats]:
        """Return the answer of each prompt, all of whose rows are there: [width], or [L, width] for tasks of tokens."""
        return [self._answer(prompt) for prompt in prompts]

    def _answer(self, prompt: PoolingPrompt) -> Floats:
        spec = prompt.spec
        answer: Floats = self._heads[spec.task](prompt.gathering.result().float(), spec).numpy().astype(np.float32)
        return answer if spec.step_tag_id is None else answer.compress(prompt.token_ids == spec.step_tag_id, axis=0)
