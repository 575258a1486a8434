"""Pooling rows: pools the hidden states of a decoder's pooling requests; the class is chosen when the runner is made.

Called by the model runner and its request table, on the compute thread. Keeps the hidden states that each request's answer
needs, chunk by chunk; a request that is removed or preempted begins anew.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from tetrad.services.errors import InternalError, TetradError, Unsupported
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import Ints, NewRequest, Pooled
from tetrad.worker_svc.core.pooling import PoolingFacts
from tetrad.worker_svc.core.request_table import SlotListener, refuse_pooling
from tetrad.worker_svc.core.step_inputs import StepInputs
from tetrad.worker_svc.layers.pooler import Pooler, PoolingPrompt


class PoolingRows(SlotListener, Protocol):
    """The part of a runner that pools."""

    def check(self, new: NewRequest) -> None:
        """Raise the error of a request that this model cannot run."""

    def collect(self, inputs: StepInputs, hidden: torch.Tensor) -> tuple[list[Pooled], list[tuple[int, TetradError]]]:
        """Return the answers and the failures of prompts that end in a step with hidden states [T, hidden]."""

    def generating(self, slots: Ints) -> Ints:
        """Return which of these slots' requests generate, as indices."""


class NoPooling:
    """The model generates only; see PoolingRows."""

    check = staticmethod(refuse_pooling)

    def add(self, slot: int, request: NewRequest) -> None:
        """Do nothing."""

    def remove(self, slot: int) -> None:
        """Do nothing."""

    def collect(
        self,
        inputs: StepInputs,  # noqa: ARG002 - of the protocol
        hidden: torch.Tensor,  # noqa: ARG002
    ) -> tuple[list[Pooled], list[tuple[int, TetradError]]]:
        """Return nothing."""
        return [], []

    def generating(self, slots: Ints) -> Ints:
        """Return all."""
        return np.arange(len(slots))


class DecoderPooling:
    """The model pools; see PoolingRows.

    Args:
        pooler: makes the answers.
        facts: what it pools, and whether it generates as well.
        normed: the model's last norm: [N, hidden] -> [N, hidden], valid until the next call.
        batch: the runner's.
    """

    def __init__(
        self, pooler: Pooler, facts: PoolingFacts, normed: Callable[[torch.Tensor], torch.Tensor], batch: InputBatch
    ) -> None:
        self._pooler, self._facts, self._normed, self._batch = pooler, facts, normed, batch
        self._prompts: dict[int, PoolingPrompt] = {}  # by slot

    def check(self, new: NewRequest) -> None:
        """Raise the error of a request that this model cannot run."""
        if new.pooling is not None:
            self._facts.check(new.pooling)
        elif not self._facts.generates:
            raise Unsupported("The model pools and does not generate.")

    def add(self, slot: int, request: NewRequest) -> None:
        """Begin a prompt."""
        if request.pooling is not None:
            self._prompts[slot] = self._pooler.prompt(request.pooling, request.token_ids)

    def remove(self, slot: int) -> None:
        """Forget a prompt."""
        self._prompts.pop(slot, None)

    def collect(self, inputs: StepInputs, hidden: torch.Tensor) -> tuple[list[Pooled], list[tuple[int, TetradError]]]:
        """Keep what the step computed of prompts, and return the answers of those that are complete."""
        chunks, ended, indices = [], [], []
        for row, slot in enumerate(inputs.slots.tolist()):
            prompt = self._prompts.get(slot)
            if prompt is None:
                continue
            start, length = int(inputs.first_token[row]), int(inputs.num_scheduled[row])
            is_end = int(inputs.num_computed[row]) + length == len(prompt.token_ids)
            wanted = prompt.gathering.wanted(length, is_end=is_end)
            indices.append(np.arange(start, start + length)[wanted])
            chunks.append(prompt)
            if is_end:
                ended.append((int(self._batch.handles[slot]), prompt))
        lengths = [len(each) for each in indices]
        if any(lengths):
            rows = self._normed(hidden[torch.from_numpy(np.concatenate(indices))])
            for prompt, part in zip(chunks, torch.split(rows, lengths), strict=True):
                prompt.gathering.add(part)
        return pooled_answers(self._pooler, ended)

    def generating(self, slots: Ints) -> Ints:
        """Return which generate."""
        return np.array([index for index, slot in enumerate(slots.tolist()) if slot not in self._prompts], np.int64)


def pooled_answers(
    pooler: Pooler, ended: list[tuple[int, PoolingPrompt]]
) -> tuple[list[Pooled], list[tuple[int, TetradError]]]:
    """Return the answers of complete prompts by handle, and the failures of those whose answers are not finite."""
    answers = pooler.answers([prompt for _, prompt in ended])
    pooled: list[Pooled] = []
    failures: list[tuple[int, TetradError]] = []
    for (handle, _), values in zip(ended, answers, strict=True):
        if np.isfinite(values).all():
            pooled.append(Pooled(handle, values))
        else:
            failures.append((handle, InternalError("The model's answer has values that are not finite numbers.")))
    return pooled, failures
