"""Row tables: the rows of a pass as arrays of integers, which kernels read in device memory; see gather_inputs."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tetrad.worker_svc.core.step_inputs import StepRows
from tetrad.worker_svc.kernels.gather_inputs import FIRST_TOKEN

Table = npt.NDArray[np.int32]

_NOTHING = np.empty(0, np.int64)
NO_ROWS = StepRows(_NOTHING, _NOTHING, _NOTHING, _NOTHING, num_decodes=0, num_tokens=0, sampling_rows=_NOTHING)
"""The rows of a step without requests."""


def table_of(rows: StepRows) -> Table:
    """Return a step's rows as a table [R, 5] in the layout of gather_inputs."""
    columns = rows.slots, rows.num_computed, rows.num_scheduled, rows.first_token, rows.num_computed + rows.num_scheduled
    return np.stack(columns, 1).astype(np.int32)


def padded(table: Table, padding: Sequence[int], size: int) -> Table:
    """Return a table of `size` rows: those of `table`, and as many rows of padding as it lacks."""
    rows = np.empty((size, len(padding)), np.int32)
    rows[: len(table)], rows[len(table) :] = table, padding
    return rows


def padded_decodes(table: Table, size: int) -> Table:
    """Pad rows [R, 5] of one token each; the tokens of padding rows follow those of the other rows."""
    rows = padded(table, (-1, 0, 1, 0, 0), size)
    rows[len(table) :, FIRST_TOKEN] = np.arange(len(table), size)
    return rows
