"""Pooler: computes the answers of prompts from their hidden states, on the device that has the hidden states.

On the host, each answer is computed separately, so that it does not depend on the other prompts of its step. On a device, where
each launch takes time, the head computes all answers of one kind together, without waiting for the device.
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
        spec: the parameters of the request.
        token_ids: [L].
        gathering: keeps the hidden states.
        pieces: answers of tokens read so far, if the prompt is answered chunk by chunk.
    """

    spec: PoolingSpec
    token_ids: Ints
    gathering: Gathering
    pieces: list[Floats] = field(default_factory=list)

    @property
    def is_of_tokens(self) -> bool:
        """Whether the prompt has an answer for each token."""
        return self.spec.task in _OF_TOKENS

    def finish(self, answer: Floats) -> Floats:
        """Return the answer of a whole prompt; with a step tag, only the tokens with this id."""
        step_tag_id = self.spec.step_tag_id
        return answer if step_tag_id is None else answer.compress(self.token_ids == step_tag_id, axis=0)


@dataclass(frozen=True, slots=True)
class LaunchedAnswers:
    """Answers of N prompts, or of chunks of them, that a device computes.

    Attributes:
        tensors: the tensors that have to be copied to the host for `read`; each has the rows of some prompts, in order.
        owners: for each tensor, the indices of its prompts among the N, and the number of rows of each.
        are_of_tokens: [N], whether a prompt's answer has a row for each token.
    """

    tensors: Sequence[torch.Tensor]
    owners: Sequence[Sequence[tuple[int, int]]]
    are_of_tokens: Sequence[bool]

    def read(self, arrays: Sequence[np.ndarray]) -> list[Floats]:
        """Return the N answers, from the copies of `tensors`: [width], or [rows, width] for answers per token."""
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
        pooling: the rows that are pooled.
        heads: the heads, by task; requests for other tasks have been refused before.
        defaults: values for requests that do not set them.
    """

    def __init__(self, pooling: PoolingType, heads: Mapping[Task, Head], defaults: PoolingSpec) -> None:
        self._gathering, self._heads, self._defaults = GATHERINGS[pooling], heads, defaults

    def prompt(self, spec: PoolingSpec, token_ids: Ints) -> PoolingPrompt:
        """Return a new prompt, without hidden states."""
        spec = spec.with_defaults(self._defaults)
        return PoolingPrompt(spec, token_ids, AllRows() if spec.task in _OF_TOKENS else self._gathering())

    def launch(self, prompts: Sequence[PoolingPrompt]) -> LaunchedAnswers:
        """Launch the answers of prompts, or of the rows that were gathered last, for answers per token; see `finish`."""
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
        """Return the answer of each complete prompt: [width], or [L, width] for tasks with an answer per token."""
        return [self._answer(prompt) for prompt in prompts]

    def _answer(self, prompt: PoolingPrompt) -> Floats:
        spec = prompt.spec
        answer: Floats = self._heads[spec.task](prompt.gathering.result().float(), spec).numpy().astype(np.float32)
        return prompt.finish(answer)
