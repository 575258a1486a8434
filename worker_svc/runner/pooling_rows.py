"""Pooling rows: pools the hidden states of a decoder's pooling requests; the class is chosen when the runner is created.

Called by the model runner and its request table, on the compute thread. Keeps the hidden states that each request's answer
needs, chunk by chunk; a request that was removed or preempted starts again. The rows of the CUDA runner derive from the classes
in this file; see cuda/pooling_rows.py.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from tetrad.services.errors import InternalError, TetradError, Unsupported
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import Floats, Ints, NewRequest
from tetrad.worker_svc.core.pooling import PoolingFacts
from tetrad.worker_svc.core.request_table import SlotListener, refuse_pooling
from tetrad.worker_svc.core.result import Pooled
from tetrad.worker_svc.core.step_inputs import StepRows
from tetrad.worker_svc.layers.pooler import Pooler, PoolingPrompt


class PoolingListener(SlotListener, Protocol):
    """The methods that the pooling rows of both runners have."""

    def check(self, new: NewRequest) -> None:
        """Raise the error of a request that this model cannot run."""

    def generating(self, slots: Ints) -> Ints:
        """Return the indices in `slots` of the requests that generate."""


class PoolingRows(PoolingListener, Protocol):
    """The part of a runner that pools."""

    def collect(self, rows: StepRows, hidden: torch.Tensor) -> tuple[list[Pooled], list[tuple[int, TetradError]]]:
        """Return answers and failures of the prompts that end in this step, from its hidden states [T, hidden]."""


class NoPooledSlots:
    """The PoolingListener of a model that only generates."""

    check = staticmethod(refuse_pooling)

    def add(self, slot: int, request: NewRequest) -> None:
        """Do nothing."""

    def remove(self, slot: int) -> None:
        """Do nothing."""

    def generating(self, slots: Ints) -> Ints:
        """Return all indices: every request generates."""
        return np.arange(len(slots))


class NoPooling(NoPooledSlots):
    """The PoolingRows of a model that only generates."""

    def collect(
        self,
        rows: StepRows,  # noqa: ARG002 - of the protocol
        hidden: torch.Tensor,  # noqa: ARG002 - of the protocol
    ) -> tuple[list[Pooled], list[tuple[int, TetradError]]]:
        """Return no answers and no failures."""
        return [], []


@dataclass(frozen=True, slots=True)
class GatheredChunk:
    """The part of a prompt that a step has computed; `is_end`: the part includes the prompt's last token."""

    handle: int
    prompt: PoolingPrompt
    is_end: bool


class PooledSlots:
    """The pooling requests of a batch, by slot, and their gathered hidden states.

    Args:
        pooler: computes the answers.
        facts: the supported tasks, and whether the model generates as well.
        normed: the model's last norm: [N, hidden] -> [N, hidden]; the result is valid until the next call.
        upload: copies indices to the device of the hidden states.
        batch: the runner's input batch.
    """

    def __init__(
        self,
        pooler: Pooler,
        facts: PoolingFacts,
        normed: Callable[[torch.Tensor], torch.Tensor],
        upload: Callable[[np.ndarray], torch.Tensor],
        batch: InputBatch,
    ) -> None:
        self._pooler, self._facts, self._normed, self._upload, self._batch = pooler, facts, normed, upload, batch
        self._prompts: dict[int, PoolingPrompt] = {}

    def check(self, new: NewRequest) -> None:
        """Raise the error of a request that this model cannot run."""
        if new.pooling is not None:
            self._facts.check(new.pooling)
        elif not self._facts.generates:
            raise Unsupported("The model pools and does not generate.")

    def add(self, slot: int, request: NewRequest) -> None:
        """Start to gather hidden states if the request pools."""
        if request.pooling is not None:
            self._prompts[slot] = self._pooler.prompt(request.pooling, request.token_ids)

    def remove(self, slot: int) -> None:
        """Delete the slot's prompt and its hidden states."""
        self._prompts.pop(slot, None)

    def gather(self, rows: StepRows, hidden: torch.Tensor) -> list[GatheredChunk]:
        """Gather the prompts' hidden states from those of a step [T, hidden]; return the step's chunks."""
        chunks, indices = [], []
        for row, slot in enumerate(rows.slots.tolist()):
            prompt = self._prompts.get(slot)
            if prompt is None:
                continue
            start, length = int(rows.first_token[row]), int(rows.num_scheduled[row])
            is_end = int(rows.num_computed[row]) + length == len(prompt.token_ids)
            wanted = prompt.gathering.wanted(length, is_end=is_end)
            indices.append(np.arange(start, start + length)[wanted])
            chunks.append(GatheredChunk(int(self._batch.handles[slot]), prompt, is_end))
        lengths = [len(each) for each in indices]
        if any(lengths):
            its = self._normed(hidden.index_select(0, self._upload(np.concatenate(indices))))
            for chunk, part in zip(chunks, torch.split(its, lengths), strict=True):
                chunk.prompt.gathering.add(part)
        return chunks

    def generating(self, slots: Ints) -> Ints:
        """Return the indices in `slots` of the requests that generate."""
        return np.array([index for index, slot in enumerate(slots.tolist()) if slot not in self._prompts], np.int64)


class DecoderPooling(PooledSlots):
    """The PoolingRows of a model on the host that pools.

    Args:
        pooler, facts, normed, batch: see PooledSlots.
    """

    def __init__(
        self, pooler: Pooler, facts: PoolingFacts, normed: Callable[[torch.Tensor], torch.Tensor], batch: InputBatch
    ) -> None:
        super().__init__(pooler, facts, normed, torch.from_numpy, batch)

    def collect(self, rows: StepRows, hidden: torch.Tensor) -> tuple[list[Pooled], list[tuple[int, TetradError]]]:
        """Gather the step's hidden states of prompts; return answers and failures of the prompts that are complete."""
        return pooled_answers(self._pooler, [(each.handle, each.prompt) for each in self.gather(rows, hidden) if each.is_end])


def pooled_answers(
    pooler: Pooler, ended: list[tuple[int, PoolingPrompt]]
) -> tuple[list[Pooled], list[tuple[int, TetradError]]]:
    """Return the answers to complete prompts by handle, and failures for answers that are not finite."""
    return checked_answers(zip([handle for handle, _ in ended], pooler.answers([prompt for _, prompt in ended]), strict=True))


def checked_answers(answers: Iterable[tuple[int, Floats]]) -> tuple[list[Pooled], list[tuple[int, TetradError]]]:
    """Return the finite answers by handle, and failures for answers that are not finite."""
    pooled: list[Pooled] = []
    failures: list[tuple[int, TetradError]] = []
    for handle, values in answers:
        if np.isfinite(values).all():
            pooled.append(Pooled(handle, values))
        else:
            failures.append((handle, InternalError("The model's answer has values that are not finite numbers.")))
    return pooled, failures
