"""The sampling rows of a step, on the host and, where a processor needs them, on the device."""

from functools import cached_property

import numpy as np
import torch

from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.cuda.device.accelerator import Accelerator


class SamplingRows:
    """R rows; row r is the request in slots[r].

    Args:
        accelerator: where the device's columns are.
        batch: the requests.
        slots: [R].
        places: [R], how many drafts stand between a request's known tokens and the row's; None: no row has any.
    """

    def __init__(self, accelerator: Accelerator, batch: InputBatch, slots: Ints, places: Ints | None = None) -> None:
        self.accelerator = accelerator
        self.slots = slots
        self.has_drafts = places is not None
        self.places: Ints = np.zeros(len(slots), np.int64) if places is None else places
        self.positions: Ints = batch.num_tokens[slots] + self.places
        """Of the tokens to be sampled."""
        self.handles: Ints = batch.handles[slots]

    @cached_property
    def on_device(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Slots and positions, [R] int64 each."""
        num_rows = len(self.slots)
        columns = np.zeros((2, num_rows + num_rows % 2), np.int64)  # both begin at a multiple of 16 bytes
        columns[:, :num_rows] = self.slots, self.positions
        slots, positions = self.accelerator.upload(columns)
        return slots[:num_rows], positions[:num_rows]
