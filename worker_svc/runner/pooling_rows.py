"""Pooling rows: pools the hidden states of a decoder's pooling requests; the class is chosen when the runner is made.

Called by the model runner and its request table, on the compute thread. Keeps the hidden states that each request's answer
needs, chunk by chunk; a request that is removed or preempted begins anew. The CUDA runner has cuda/pooling_rows.py.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from tetrad.services.errors import InternalError, TetradError, Unsupported
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import Floats, Ints, NewRequest, Pooled
from tetrad.worker_svc.core.pooling import PoolingFacts
from tetrad.worker_svc.core.request_table import SlotListener, refuse_pooling
from tetrad.worker_svc.core.step_inputs import StepRows
from tetrad.worker_svc.layers.pooler import Pooler, PoolingPrompt


class PoolingRows(SlotListener, Protocol):
    """The part of a runner that pools."""

    def check(self, new: NewRequest) -> None:
        """Raise the error of a request that this model cannot run."""

    def collect(self, rows: StepRows, hidden: torch.Tensor) -> tuple[list[Pooled], list[tuple[int, TetradError]]]:
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
        rows: StepRows,  # noqa: ARG002 - of the protocol
        hidden: torch.Tensor,  # noqa: ARG002 - of the protocol
    ) -> tuple[list[Pooled], list[tuple[int, TetradError]]]:
        """Return nothing."""
        return [], []

    def generating(self, slots: Ints) -> Ints:
        """Return all."""
        return np.arange(len(slots))


@dataclass(frozen=True, slots=True)
class GatheredChunk:
    """What a step has computed of a prompt; `is_end`: nothing of it is left."""

    handle: int
    prompt: PoolingPrompt
    is_end: bool


class PooledSlots:
    """The pooling requests of a batch, by slot, and what is gathered of their hidden states.

    Args:
        pooler: makes the answers.
        facts: what it pools, and whether the model generates as well.
        normed: the model's last norm: [N, hidden] -> [N, hidden], valid until the next call.
        upload: brings indices to the device of the hidden states.
        batch: the runner's.
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
        """Begin a prompt."""
        if request.pooling is not None:
            self._prompts[slot] = self._pooler.prompt(request.pooling, request.token_ids)

    def remove(self, slot: int) -> None:
        """Forget a prompt."""
        self._prompts.pop(slot, None)

    def gather(self, rows: StepRows, hidden: torch.Tensor) -> list[GatheredChunk]:
        """Keep what a step with hidden states [T, hidden] computed of prompts, and return them."""
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
        """Return which generate."""
        return np.array([index for index, slot in enumerate(slots.tolist()) if slot not in self._prompts], np.int64)


class DecoderPooling(PooledSlots):
    """The model pools, on the host; see PoolingRows.

    Args:
        pooler, facts, normed, batch: see PooledSlots.
    """

    def __init__(
        self, pooler: Pooler, facts: PoolingFacts, normed: Callable[[torch.Tensor], torch.Tensor], batch: InputBatch
    ) -> None:
        super().__init__(pooler, facts, normed, torch.from_numpy, batch)

    def collect(self, rows: StepRows, hidden: torch.Tensor) -> tuple[list[Pooled], list[tuple[int, TetradError]]]:
        """Keep what the step computed of prompts, and return the answers of those that are complete."""
        return pooled_answers(self._pooler, [(each.handle, each.prompt) for each in self.gather(rows, hidden) if each.is_end])


def pooled_answers(
    pooler: Pooler, ended: list[tuple[int, PoolingPrompt]]
) -> tuple[list[Pooled], list[tuple[int, TetradError]]]:
    """Return the answers of complete prompts by handle, and the failures of those whose answers are not finite."""
    return checked_answers(zip([handle for handle, _ in ended], pooler.answers([prompt for _, prompt in ended]), strict=True))


def checked_answers(answers: Iterable[tuple[int, Floats]]) -> tuple[list[Pooled], list[tuple[int, TetradError]]]:
    """Return answers by handle, and the failures of those that are not finite."""
    pooled: list[Pooled] = []
    failures: list[tuple[int, TetradError]] = []
    for handle, values in answers:
        if np.isfinite(values).all():
            pooled.append(Pooled(handle, values))
        else:
            failures.append((handle, InternalError("The model's answer has values that are not finite numbers.")))
    return pooled, failures
