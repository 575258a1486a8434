"""Pooler: makes the answers of prompts from their hidden states, on the device that has them.

On the host each prompt is answered by itself, so that an answer does not depend on the other prompts of its step. On a device,
where each launch costs, all prompts with one kind of answer go through the head together, and nothing is waited for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

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
        pieces: answers of tokens that have been read, of a prompt whose chunks are answered one by one.
    """

    spec: PoolingSpec
    token_ids: Ints
    gathering: Gathering
    pieces: list[Floats] = field(default_factory=list)

    @property
    def is_of_tokens(self) -> bool:
        """Whether each token is answered."""
        return self.spec.task in _OF_TOKENS

    def finish(self, answer: Floats) -> Floats:
        """Return the answer of a whole prompt without the tokens that it leaves out."""
        step_tag_id = self.spec.step_tag_id
        return answer if step_tag_id is None else answer.compress(self.token_ids == step_tag_id, axis=0)


@dataclass(frozen=True, slots=True)
class LaunchedAnswers:
    """Answers of N prompts, or of chunks of them, that a device computes.

    Attributes:
        tensors: to be copied out for `read`; each has the rows of some prompts, one after another.
        owners: for each tensor, its prompts' places among the N, and how many rows each has.
        are_of_tokens: [N], whether a prompt's answer has a row for each token.
    """

    tensors: Sequence[torch.Tensor]
    owners: Sequence[Sequence[tuple[int, int]]]
    are_of_tokens: Sequence[bool]

    def read(self, arrays: Sequence[np.ndarray]) -> list[Floats]:
        """Return the N answers, from the copies of `tensors`: [width], or [rows, width] of tokens."""
        found: dict[int, Floats] = {}
        for array, owners in zip(arrays, self.owners, strict=True):
            first = 0
            for index, num_rows in owners:
                rows = array[first : first + num_rows]
                found[index] = rows if self.are_of_tokens[index] else rows[0]
                first += num_rows
        return [found[index] for index in range(len(found))]


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

    def launch(self, prompts: Sequence[PoolingPrompt]) -> LaunchedAnswers:
        """Return what computes the answers of prompts, or of the rows of prompts that were gathered last; see `finish`."""
        kinds: dict[object, list[int]] = {}
        for index, prompt in enumerate(prompts):
            spec = prompt.spec
            kinds.setdefault((spec.task, spec.use_activation, spec.dimensions, spec.returned_token_ids), []).append(index)
        tensors, owners = [], []
        for indices in kinds.values():
            spec = prompts[indices[0]].spec
            results = [prompts[index].gathering.result() for index in indices]
            rows = [each.view(-1, each.shape[-1]) for each in results]
            tensors.append(self._heads[spec.task](torch.cat(rows).float(), spec))
            owners.append([(index, len(its)) for index, its in zip(indices, rows, strict=True)])
        return LaunchedAnswers(tensors, owners, [prompt.is_of_tokens for prompt in prompts])

    def answers(self, prompts: Sequence[PoolingPrompt]) -> list[Floats]:
        """Return the answer of each prompt, all of whose rows are there: [width], or [L, width] for tasks of tokens."""
        return [self._answer(prompt) for prompt in prompts]

    def _answer(self, prompt: PoolingPrompt) -> Floats:
        spec = prompt.spec
        answer: Floats = self._heads[spec.task](prompt.gathering.result().float(), spec).numpy().astype(np.float32)
        return prompt.finish(answer)
