"""Pooling rows on a device: launches the answers of pooling requests after a step, which are read after their copy to the host.

The input of an answer stays on the device until the prompt ends: one row, or the sum of all rows. Answers per token are copied
to the host chunk by chunk, and the reading thread joins them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from tetrad.services.errors import TetradError
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import Floats, Ints
from tetrad.worker_svc.core.pooling import PoolingFacts, PoolingSpec
from tetrad.worker_svc.core.result import Pooled
from tetrad.worker_svc.core.step_inputs import StepRows
from tetrad.worker_svc.layers.pooler import LaunchedAnswers, Pooler
from tetrad.worker_svc.runner.pooling_rows import GatheredChunk, NoPooledSlots, PooledSlots, PoolingListener, checked_answers

_NO_ANSWERS = LaunchedAnswers((), (), ())


@dataclass(frozen=True, slots=True)
class LaunchedPooling:
    """The launched answers of a step's pooling requests.

    Attributes:
        chunks: the chunks of prompts whose answers, or answers per token, were launched.
        answers: the answers of the chunks.
    """

    chunks: Sequence[GatheredChunk] = ()
    answers: LaunchedAnswers = field(default=_NO_ANSWERS)

    @property
    def tensors(self) -> Sequence[torch.Tensor]:
        """The tensors that have to be copied to the host for `read`."""
        return self.answers.tensors

    def read(self, arrays: Sequence[np.ndarray]) -> tuple[list[Pooled], list[tuple[int, TetradError]]]:
        """Return the answers of prompts that end in this step, and failures for answers that are not finite."""
        ended: list[tuple[int, Floats]] = []
        for chunk, values in zip(self.chunks, self.answers.read(arrays), strict=True):
            prompt = chunk.prompt
            if prompt.is_of_tokens:
                prompt.pieces.append(values)
            if chunk.is_end:
                ended.append((chunk.handle, prompt.finish(np.concatenate(prompt.pieces) if prompt.pieces else values)))
        return checked_answers(ended)


class DevicePoolingRows(PoolingListener, Protocol):
    """The part of a device's runner that pools.

    Attributes:
        rehearsed: the pooling parameters of requests in warm-up steps; None: they generate.
    """

    rehearsed: PoolingSpec | None

    def launch(self, rows: StepRows, hidden: torch.Tensor) -> LaunchedPooling:
        """Launch the answers of a step with hidden states [T, hidden]."""

    def pools(self, slots: Ints) -> bool:
        """Return whether a request in one of these slots pools."""


class NoDevicePooling(NoPooledSlots):
    """The DevicePoolingRows of a model that only generates."""

    rehearsed: PoolingSpec | None = None

    def launch(self, rows: StepRows, hidden: torch.Tensor) -> LaunchedPooling:  # noqa: ARG002 - of the protocol
        """Return no answers."""
        return LaunchedPooling()

    def pools(self, slots: Ints) -> bool:  # noqa: ARG002 - of the protocol
        """Return False: no request pools."""
        return False


class DevicePooling(PooledSlots):
    """The DevicePoolingRows of a model that pools.

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
        """Return whether a request in one of these slots pools."""
        return bool(self._prompts) and not self._prompts.keys().isdisjoint(slots.tolist())

    def launch(self, rows: StepRows, hidden: torch.Tensor) -> LaunchedPooling:
        """Launch the answers of prompts that end in this step, and the answers of tokens for tasks with answers per token."""
        due = [each for each in self.gather(rows, hidden) if each.is_end or each.prompt.is_of_tokens]
        return LaunchedPooling(due, self._pooler.launch([each.prompt for each in due]))
