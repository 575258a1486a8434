"""Interface of the logits processors on the device; sampler/processors.py has the host's.

Before the launches of a step, each processor returns its work, so a step without work leaves the logits unchanged. The data of
its rows stays on the device, in one table that is uploaded when the batch changes.
"""

from collections.abc import Callable
from typing import Protocol

import torch

from tetrad.worker_svc.core.plan import NewRequest
from tetrad.worker_svc.cuda.sampling.rows import SamplingRows

LogitsChange = Callable[[torch.Tensor], None]
"""Launches what changes logits [R, V] float32 in place."""


class DeviceProcessor(Protocol):
    """Changes logits before a token is chosen; a SlotListener."""

    def add(self, slot: int, request: NewRequest) -> None:
        """Remember what the request asks of this processor, if anything."""

    def remove(self, slot: int) -> None:
        """Forget a slot; one that asked for nothing is no error."""

    def change_for(self, rows: SamplingRows) -> LogitsChange | None:
        """Return the change of a step's logits; None: no change."""
