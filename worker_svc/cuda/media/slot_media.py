"""Slot media on a device: the image rows of a step, and its positions on three axes, without waiting for the device.

Embeddings stay in device memory, where the tower has written them. In models with M-RoPE, tokens outside of images have one
position on all axes: their place in the request plus a shift, which is the same for all tokens between two images. The device
has the shift of each slot, so that steps without images run as those of any other model, and as the same graphs. A step with a
part of an image gets positions on three axes for all of its tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import numpy as np
import torch

from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.media import ModelMedia
from tetrad.worker_svc.core.plan import GivenRows, Ints, NewRequest
from tetrad.worker_svc.core.request_table import SlotListener
from tetrad.worker_svc.core.step_inputs import StepRows
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.media.given_inputs import NOTHING_GIVEN, GivenInputs
from tetrad.worker_svc.media.slot_media import NoMedia, SlotMedia
from tetrad.worker_svc.models.decoder import GivenEmbeddings

Upload = Callable[[np.ndarray], torch.Tensor]
"""Function that copies an array to the device."""


class DeviceStepMedia(SlotListener, Protocol):
    """The images of a runner's requests.

    Attributes:
        shifts: [S] int32 on the device, position of each slot's tokens less their places; None: positions are places.
    """

    shifts: torch.Tensor | None

    def check(self, request: NewRequest) -> None:
        """See StepMedia."""

    def rehearsal(self) -> AbstractContextManager[None] | None:
        """Return a context in which steps have the inputs of steps with images; None: there are no images."""

    def given(self, rows: StepRows, embeds: GivenRows | None) -> GivenInputs:
        """Set the shifts of a step, and return its inputs that are given: embeddings of images and `embeds`, and positions."""


class NoDeviceMedia(NoMedia):
    """The DeviceStepMedia of a model that takes only text.

    Args:
        accelerator: the device.
    """

    shifts: torch.Tensor | None = None

    def __init__(self, accelerator: Accelerator) -> None:
        self._upload = accelerator.upload

    def rehearsal(self) -> None:
        """Return None."""

    def given(self, rows: StepRows, embeds: GivenRows | None) -> GivenInputs:  # noqa: ARG002 - of the protocol
        """Return `embeds` alone."""
        return NOTHING_GIVEN if embeds is None else GivenInputs(_uploaded(embeds, self._upload))


class SlotDeviceMedia(SlotMedia):
    """The DeviceStepMedia of a model with a tower.

    Args:
        media: the tower, and the encoder cache, whose values are tensors on the device.
        batch: the requests.
        accelerator: the device.
        has_axes: whether the model has M-RoPE.
        reads_rows: whether the layers of this rank's stage read embeddings or deep rows.
    """

    def __init__(
        self,
        media: ModelMedia,
        batch: InputBatch,
        accelerator: Accelerator,
        *,
        has_axes: bool,
        reads_rows: bool = True,
    ) -> None:
        super().__init__(media)
        self._accelerator, self._reads_rows, num_slots = accelerator, reads_rows, batch.max_num_seqs
        self._rehearses = False
        self.shifts = torch.zeros(num_slots, dtype=torch.int32, device=accelerator.device) if has_axes else None
        self._written = np.zeros(num_slots, np.int64)  # the shifts that the device has, or has before the next pass
        self._last = np.zeros(num_slots, np.int64)  # the shifts behind the last images
        self._ends = np.zeros(num_slots, np.int64)  # the places behind the last images

    def add(self, slot: int, request: NewRequest) -> None:
        """See StepMedia."""
        super().add(slot, request)
        its = self._of_slot.get(slot)
        axes = None if its is None else its.axes
        self._last[slot], self._ends[slot] = (0, 0) if its is None or axes is None else (axes.delta, its.end)

    def given(self, rows: StepRows, embeds: GivenRows | None) -> GivenInputs:
        """See DeviceStepMedia."""
        axes = None if self.shifts is None else self._axes(rows, self.shifts)
        ends = self._ends_of(rows) if self._is_whole else None
        return GivenInputs(self._embeddings(rows, embeds) if self._reads_rows else None, axes, ends)

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Let steps have the inputs of steps with images: their kernels are compiled, or loaded, before the first image."""
        self._rehearses = True
        try:
            yield
        finally:
            self._rehearses = False

    def _ends_of(self, rows: StepRows) -> torch.Tensor | None:
        """Return for each token the place behind the last one that it attends to; None if none attends to a later one."""
        if not (self._of_slot or self._rehearses):
            return None
        ends = np.arange(rows.num_tokens) + np.repeat(rows.num_computed - rows.first_token, rows.num_scheduled) + 1
        has_ends = self._rehearses
        for row, slot in enumerate(rows.slots.tolist()):
            its, start, first = self._of_slot.get(slot), int(rows.num_computed[row]), int(rows.first_token[row])
            if its is not None and its.ends is not None and start < its.end:
                known = its.ends[start : start + int(rows.num_scheduled[row])]
                assert known.max() <= start + rows.num_scheduled[row], "the engine core ends no step inside an image"
                its_ends = ends[first : first + len(known)]
                has_ends = has_ends or bool((known > its_ends).any())
                its_ends[:] = known
        return self._accelerator.upload(ends.astype(np.int32)) if has_ends else None

    def _embeddings(self, rows: StepRows, embeds: GivenRows | None) -> GivenEmbeddings | None:
        upload = self._accelerator.upload
        given = None if embeds is None else _uploaded(embeds, upload)
        parts = list(self._parts(rows)) if self._of_slot else ()
        if not parts:
            return given
        self._accelerator.keep([each for _, encoded, *_ in parts for each in encoded if each is not None])
        values = torch.cat([encoded.rows[first:end] for _, encoded, first, end in parts])
        deep = (
            torch.cat([self._deep_of(encoded, first, end) for _, encoded, first, end in parts], 1) if self._num_deep else None
        )
        own = GivenEmbeddings(upload(np.concatenate([places for places, *_ in parts])), values, deep)
        return own if given is None else _joined(own, given)

    def _axes(self, rows: StepRows, shifts: torch.Tensor) -> torch.Tensor | None:
        """Set the shifts of a step's slots; return the positions [3, T] of its tokens if it has a part of an image."""
        slots, wanted = rows.slots, self._last[rows.slots]
        inside: list[int] = []
        for row in np.flatnonzero(rows.num_computed < self._ends[slots]).tolist():
            its, start = self._of_slot[int(slots[row])], int(rows.num_computed[row])
            end = start + int(rows.num_scheduled[row])
            if any(place.start < end and start < place.end for place in its.places):
                inside.append(row)
            elif its.axes is not None:
                wanted[row] = its.axes.of(start, 1)[0, 0] - start
        changed = wanted != self._written[slots]
        if changed.any():
            changes = self._accelerator.upload(np.stack([slots[changed], wanted[changed]]))
            shifts.index_copy_(0, changes[0], changes[1].to(torch.int32))
            self._written[slots] = wanted
        return self._positions(rows, wanted, inside) if inside or self._rehearses else None

    def _positions(self, rows: StepRows, shifts: Ints, inside: Sequence[int]) -> torch.Tensor:
        """Return the positions [3, T] of a step's tokens; rows `inside` have parts of images."""
        place = np.arange(rows.num_tokens) + np.repeat(rows.num_computed - rows.first_token + shifts, rows.num_scheduled)
        positions = np.tile(place, (3, 1))
        for row in inside:
            first, count = int(rows.first_token[row]), int(rows.num_scheduled[row])
            axes = self._of_slot[int(rows.slots[row])].axes
            assert axes is not None, "rows inside images are of slots with axes"
            positions[:, first : first + count] = axes.of(int(rows.num_computed[row]), count)
        return self._accelerator.upload(positions.astype(np.int32))


def _uploaded(embeds: GivenRows, upload: Upload) -> GivenEmbeddings:
    return GivenEmbeddings(upload(embeds.rows), upload(embeds.values))


def _joined(own: GivenEmbeddings, given: GivenEmbeddings) -> GivenEmbeddings:
    """Return the rows of both; rows of `given` get no deep values."""
    values, deep = torch.cat([own.values, given.values.to(own.values.dtype)]), own.deep
    if deep is not None:
        deep = torch.cat([deep, deep.new_zeros(len(deep), *given.values.shape)], 1)
    return GivenEmbeddings(torch.cat([own.rows, given.rows]), values, deep)
