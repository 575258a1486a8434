"""Custom processors on the device: calls the logits processors of other authors with the device's logits.

Their functions run on the host and need token ids that only the device knows. So a step with rows that have such functions
waits once for these ids, behind the steps before it; other steps do not wait. The drafts before a place count as its output,
as if they were right. What the functions leave is checked when the step is read.
"""

from collections.abc import Sequence

import numpy as np
import torch

from tetrad.services.errors import TetradError
from tetrad.worker_svc.cuda.sampling.rows import SamplingRows
from tetrad.worker_svc.cuda.sampling.state import DeviceState
from tetrad.worker_svc.sampler.custom import CustomRequests, RequestFunctions, RowErrors, apply_functions, check_largest
from tetrad.worker_svc.sampler.custom_classes import NamedProcessor
from tetrad.worker_svc.sampler.processors import MASKED


class CustomChange:
    """The change of one step's logits by custom processors; see LogitsChange.

    Args:
        state: the tokens on the device.
        rows: the step's rows.
        concerned: the rows that have functions, with these.
    """

    def __init__(self, state: DeviceState, rows: SamplingRows, concerned: Sequence[tuple[int, RequestFunctions]]) -> None:
        self._state, self._rows, self._concerned = state, rows, concerned
        self._errors: list[tuple[int, TetradError]] = []
        self._left: list[tuple[int, str, torch.Tensor]] = []

    def __call__(self, logits: torch.Tensor) -> None:
        """Change logits [R, V] in place, after waiting for the rows' token ids."""
        token_ids = self._token_ids()
        for (row, found), ids in zip(self._concerned, token_ids, strict=True):
            line = logits[row]

            def note(name: str, largest: torch.Tensor, row: int = row, line: torch.Tensor = line) -> None:
                self._left.append((row, name, largest))
                line.masked_fill_(~largest.isfinite(), MASKED)  # a row that fails brings no NaN into the kernels

            apply_functions(found, row, ids, line, self._errors, note)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors that have to be copied to the host for `read`: the largest logits that the functions left."""
        return [torch.stack([largest for *_, largest in self._left])] if self._left else []

    def read(self, arrays: list[np.ndarray]) -> RowErrors:
        """Return the rows whose functions failed, from the copies of `tensors`; safe on any thread."""
        errors = dict(self._errors)
        for (row, name, _), largest in zip(self._left, arrays[0] if arrays else (), strict=True):
            try:
                check_largest(name, float(largest))
            except TetradError as error:
                errors.setdefault(row, error)
        return list(errors.items())

    def _token_ids(self) -> list[list[int]]:
        """Return the tokens before the place of each concerned row."""
        which = np.array([row for row, _ in self._concerned], np.int64)
        positions = self._rows.positions[which]
        slots, lines = np.unique(self._rows.slots[which], return_inverse=True)
        accelerator = self._rows.accelerator
        known = self._state.token_ids[:, : int(positions.max())].index_select(0, accelerator.upload(slots))
        [ids] = accelerator.download([known]).wait()
        return [ids[line, :end].tolist() for line, end in zip(lines.tolist(), positions.tolist(), strict=True)]


class DeviceCustomProcessors(CustomRequests):
    """The custom processors of the device's sampler; a DeviceProcessor.

    Args:
        state: the tokens on the device.
        processors: the custom processors, in the order of application.
    """

    def __init__(self, state: DeviceState, processors: Sequence[NamedProcessor]) -> None:
        super().__init__(processors)
        self._state = state

    def change_for(self, rows: SamplingRows) -> CustomChange | None:
        """Return the change of a step's logits; None if no row has functions."""
        if not self.by_slot:
            return None
        found = [(row, self.by_slot[slot]) for row, slot in enumerate(rows.slots.tolist()) if slot in self.by_slot]
        return CustomChange(self._state, rows, found) if found else None
