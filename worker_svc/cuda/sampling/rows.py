"""The sampling rows of a step, on the host and, if a processor needs them, on the device."""

from functools import cached_property

import numpy as np
import torch

from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.cuda.device.accelerator import Accelerator


class SamplingRows:
    """R sampling rows; row r belongs to the request in slots[r].

    Args:
        accelerator: the device for the device's columns.
        batch: the requests.
        slots: [R].
        places: [R], number of drafts between the request's known tokens and the row's token; None: no drafts.
    """

    def __init__(self, accelerator: Accelerator, batch: InputBatch, slots: Ints, places: Ints | None = None) -> None:
        self.accelerator = accelerator
        self.slots = slots
        self.has_drafts = places is not None
        self.places: Ints = np.zeros(len(slots), np.int64) if places is None else places
        self.positions: Ints = batch.num_tokens[slots] + self.places
        """Positions of the tokens to be sampled."""
        self.handles: Ints = batch.handles[slots]

    @cached_property
    def on_device(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Slots and positions, [R] int64 each."""
        num_rows = len(self.slots)
        columns = np.zeros((2, num_rows + num_rows % 2), np.int64)  # both columns are aligned to 16 bytes
        columns[:, :num_rows] = self.slots, self.positions
        slots, positions = self.accelerator.upload(columns)
        return slots[:num_rows], positions[:num_rows]
