"""Interface of the logits processors on the device; sampler/processors.py has the host's.

Before a step's launches, each processor returns its change of the logits, or None, so steps without changes leave the logits
as they are. The data of a processor's rows stays on the device, in one table that is uploaded when the batch changes.
"""

from collections.abc import Callable
from typing import Protocol

import torch

from tetrad.worker_svc.core.plan import NewRequest
from tetrad.worker_svc.cuda.sampling.rows import SamplingRows

LogitsChange = Callable[[torch.Tensor], None]
"""Function that launches the change of logits [R, V] float32 in place."""


class DeviceProcessor(Protocol):
    """A SlotListener that changes logits before a token is chosen."""

    def add(self, slot: int, request: NewRequest) -> None:
        """Store the request's parameters for this processor, if it has any."""

    def remove(self, slot: int) -> None:
        """Delete the slot's parameters; do nothing if it has none."""

    def change_for(self, rows: SamplingRows) -> LogitsChange | None:
        """Return the change of a step's logits; None if there is no change."""
