"""Pooling rows on a device: launches the answers of pooling requests behind a step, read once they have arrived.

What an answer is made of stays on the device until the prompt ends: a row, or the sum of all. Answers of tokens are copied out
chunk by chunk, and the reading thread joins them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from tetrad.services.errors import TetradError
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import Floats, Ints, NewRequest, Pooled
from tetrad.worker_svc.core.pooling import PoolingFacts, PoolingSpec
from tetrad.worker_svc.core.request_table import SlotListener, refuse_pooling
from tetrad.worker_svc.core.step_inputs import StepRows
from tetrad.worker_svc.layers.pooler import LaunchedAnswers, Pooler
from tetrad.worker_svc.runner.pooling_rows import GatheredChunk, PooledSlots, checked_answers

_NO_ANSWERS = LaunchedAnswers((), (), ())


@dataclass(frozen=True, slots=True)
class LaunchedPooling:
    """What a step answers of its pooling requests.

    Attributes:
        chunks: whose answers, or whose tokens' answers, the step has launched.
        answers: of the chunks.
    """

    chunks: Sequence[GatheredChunk] = ()
    answers: LaunchedAnswers = field(default=_NO_ANSWERS)

    @property
    def tensors(self) -> Sequence[torch.Tensor]:
        """To be copied out for `read`."""
        return self.answers.tensors

    def read(self, arrays: Sequence[np.ndarray]) -> tuple[list[Pooled], list[tuple[int, TetradError]]]:
        """Return the answers of prompts that end in this step, and the failures of those that are not finite."""
        ended: list[tuple[int, Floats]] = []
        for chunk, values in zip(self.chunks, self.answers.read(arrays), strict=True):
            prompt = chunk.prompt
            if prompt.is_of_tokens:
                prompt.pieces.append(values)
            if chunk.is_end:
                ended.append((chunk.handle, prompt.finish(np.concatenate(prompt.pieces) if prompt.pieces else values)))
        return checked_answers(ended)


class DevicePoolingRows(SlotListener, Protocol):
    """The part of a device's runner that pools.

    Attributes:
        rehearsed: what requests of warm-up steps ask for; None: they generate.
    """

    rehearsed: PoolingSpec | None

    def check(self, new: NewRequest) -> None:
        """Raise the error of a request that this model cannot run."""

    def launch(self, rows: StepRows, hidden: torch.Tensor) -> LaunchedPooling:
        """Launch the answers of a step with hidden states [T, hidden]."""

    def pools(self, slots: Ints) -> bool:
        """Return whether a request in one of these slots pools."""

    def generating(self, slots: Ints) -> Ints:
        """Return which of these slots' requests generate, as indices."""


class NoDevicePooling:
    """The model generates only; see DevicePoolingRows."""

    rehearsed: PoolingSpec | None = None
    check = staticmethod(refuse_pooling)

    def add(self, slot: int, request: NewRequest) -> None:
        """Do nothing."""

    def remove(self, slot: int) -> None:
        """Do nothing."""

    def launch(self, rows: StepRows, hidden: torch.Tensor) -> LaunchedPooling:  # noqa: ARG002 - of the protocol
        """Return nothing."""
        return LaunchedPooling()

    def pools(self, slots: Ints) -> bool:  # noqa: ARG002 - of the protocol
        """Return False."""
        return False

    def generating(self, slots: Ints) -> Ints:
        """Return all."""
        return np.arange(len(slots))


class DevicePooling(PooledSlots):
    """The model pools; see DevicePoolingRows.

    Args:
        pooler, facts, normed, upload, batch: see PooledSlots.
    """

    def __init__(
        self,
        pooler: Pooler,
        facts: PoolingFacts,
        normed: Callable[[torch.Tensor], torch.Tensor],
        upload: Callable[[np.ndarray], torch.Tensor],
        batch: InputBatch,
    ) -> None:
        super().__init__(pooler, facts, normed, upload, batch)
        self.rehearsed = None if facts.generates else PoolingSpec(facts.tasks[0])

    def pools(self, slots: Ints) -> bool:
        """Return whether any pools."""
        return bool(self._prompts) and not self._prompts.keys().isdisjoint(slots.tolist())

    def launch(self, rows: StepRows, hidden: torch.Tensor) -> LaunchedPooling:
        """Launch the answers of prompts that end here, and of the tokens of those whose tokens are answered."""
        due = [each for each in self.gather(rows, hidden) if each.is_end or each.prompt.is_of_tokens]
        return LaunchedPooling(due, self._pooler.launch([each.prompt for each in due]))
