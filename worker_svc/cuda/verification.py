"""Verification of drafts on the device: samples at the places of all drafts at once, and keeps the tokens after right drafts.

Called by the CUDA runner, on the compute thread. A place after a draft is sampled as if the draft were right: the device has
the drafts after the known tokens, and noise, penalties and masks follow from the position. Tokens sampled after a wrong draft
are dropped when the result is read. So the tokens are those of a run without drafts, and the host does not wait meanwhile. Only
the result tells the number of new tokens, which the next step needs: `settle` waits for it. The engine core sends no plan
before it has read that result, so in practice `settle` does not wait.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import GrammarRows, Ints
from tetrad.worker_svc.core.step_inputs import StepRows
from tetrad.worker_svc.cuda.device.accelerator import Download
from tetrad.worker_svc.cuda.sampling.sampler import DeviceSampled, DeviceSampler
from tetrad.worker_svc.cuda.sampling.state import DeviceState
from tetrad.worker_svc.sampler.sampler import Sampled, join_sampled

_ROWS_AT_ONCE = 128
"""Number of places that are sampled at once: half of the memory profile's rows, because penalties copy their lines."""


@dataclass(frozen=True, slots=True)
class Places:
    """N places of R requests, one request after another. A request with k drafts has k + 1 places.

    Attributes:
        slots: [N], slots of the requests.
        places: [N], numbers of the places within a request, from 0.
        tokens: [N], index of the step's token before the place.
        drafts: [N], the draft at the place; -1 after the last draft.
        first: [R], index of the first place of each request.
    """

    slots: Ints
    places: Ints
    tokens: Ints
    drafts: Ints
    first: Ints

    def pieces(self) -> Iterator[slice]:
        """Yield all places in slices of about _ROWS_AT_ONCE; a slice contains whole requests."""
        begin, ends = 0, [*self.first[1:].tolist(), len(self.slots)]
        for end, following in zip(ends, [*ends[1:], None], strict=True):
            if following is None or following - begin > _ROWS_AT_ONCE:
                yield slice(begin, end)
                begin = end

    def are_kept(self, token_ids: Ints, has_failed: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return whether each place [N] follows only right drafts; a failed place is kept only if it is its request's first."""
        is_wrong = (token_ids != self.drafts) | has_failed
        num_wrong = np.cumsum(is_wrong) - is_wrong  # number of wrong places before each place
        owners = np.repeat(np.arange(len(self.first)), np.diff(self.first, append=len(self.slots)))
        kept: npt.NDArray[np.bool_] = (num_wrong == num_wrong[self.first][owners]) & ~(has_failed & (self.places > 0))
        return kept


def places_of(rows: StepRows, batch: InputBatch) -> Places:
    """Return the places of a step's sampling rows."""
    which = rows.sampling_rows
    slots = rows.slots[which]
    num_places = batch.num_drafts[slots] + 1
    first = np.cumsum(num_places) - num_places
    owners = np.repeat(np.arange(len(slots)), num_places)
    places = np.arange(len(owners)) - first[owners]
    last = (rows.first_token + rows.num_scheduled - 1)[which]
    is_draft = places < batch.num_drafts[slots][owners]
    ids = batch.token_ids[slots[owners], batch.num_tokens[slots][owners] + places]
    return Places(
        slots=slots[owners],
        places=places,
        tokens=(last - batch.num_drafts[slots])[owners] + places,
        drafts=np.where(is_draft, ids, -1),
        first=first,
    )


def spread(rows: StepRows) -> StepRows:
    """Return rows of one token, one for each token of a step, so that a decode graph can run them.

    A token attends to those before it, because each layer writes all keys of a step before it reads any.
    """
    counts = rows.num_scheduled
    offsets = np.arange(rows.num_tokens) - np.repeat(rows.first_token, counts)
    return replace(
        rows,
        slots=np.repeat(rows.slots, counts),
        num_computed=np.repeat(rows.num_computed, counts) + offsets,
        num_scheduled=np.ones(rows.num_tokens, np.int64),
        first_token=np.arange(rows.num_tokens),
        num_decodes=rows.num_tokens,
        sampling_rows=np.arange(rows.num_tokens),
    )


class VerifiedSamples:
    """The samples at all places of a step; see LaunchedSamples.

    Args:
        places: the places of the step.
        pieces: the samples of the places, slice by slice.
        handles: [N], handles of the requests.
    """

    def __init__(self, places: Places, pieces: list[DeviceSampled], handles: npt.NDArray[np.uint32]) -> None:
        self.places, self._pieces, self.handles = places, pieces, handles
        self.tensors = [tensor for piece in pieces for tensor in piece.tensors]

    def read(self, arrays: list[np.ndarray]) -> tuple[npt.NDArray[np.uint32], Sampled]:
        """Return handles and samples of the places that are kept."""
        sampled, kept = self._sampled(arrays)
        return self.handles[kept], sampled.select(kept)

    def are_accepted(self, slots: Ints, upload: Callable[[np.ndarray], torch.Tensor]) -> torch.Tensor:
        """Return [R, K] bool on the device: whether each draft of these slots [R], and all before it, equal the samples.

        K is the largest number of drafts of a slot. `upload` copies an array to the device.
        """
        places = self.places
        first_of = dict(zip(places.slots[places.first].tolist(), places.first.tolist(), strict=True))
        first = np.array([first_of[slot] for slot in slots.tolist()], np.int64)
        ends = dict(zip(places.slots.tolist(), range(len(places.slots)), strict=True))
        last = np.array([ends[slot] for slot in slots.tolist()], np.int64)  # the place after the last draft, which has none
        index = np.minimum(first[:, None] + np.arange((last - first).max()), last[:, None])
        sampled = torch.cat([piece.token_ids for piece in self._pieces])
        are_right = sampled.index_select(0, upload(index.ravel())) == upload(places.drafts[index].ravel())
        return are_right.view(index.shape).cumprod(1).bool()

    def counts(self, arrays: list[np.ndarray]) -> Ints:
        """Return the number of new tokens of each request [R]."""
        _, kept = self._sampled(arrays)
        found: Ints = np.add.reduceat(kept.astype(np.int64), self.places.first)
        return found

    def _sampled(self, arrays: list[np.ndarray]) -> tuple[Sampled, npt.NDArray[np.bool_]]:
        parts, begin = [], 0
        for piece in self._pieces:
            parts.append(piece.read(arrays[begin : begin + len(piece.tensors)]))
            begin += len(piece.tensors)
        sampled = join_sampled(parts)
        return sampled, self.places.are_kept(sampled.token_ids, sampled.has_failed())


class Verifier:
    """Verifies the drafts of one runner's steps.

    Args:
        batch: the requests.
        state: the requests' tokens on the device.
        sampler: chooses tokens.
    """

    def __init__(self, batch: InputBatch, state: DeviceState, sampler: DeviceSampler) -> None:
        self._batch, self._state, self._sampler = batch, state, sampler
        self._pending: tuple[VerifiedSamples, Download] | None = None

    def sample(self, places: Places, logits_of: Callable[[Ints], torch.Tensor], grammar: GrammarRows | None) -> VerifiedSamples:
        """Launch the sampling at all places; `logits_of(tokens [N])` returns logits [N, V], which are overwritten."""
        pieces = []
        for piece in places.pieces():
            logits = logits_of(places.tokens[piece])
            sampled = self._sampler.sample(logits, places.slots[piece], grammar, places.places[piece])
            self._state.write(places.slots[piece], places.places[piece], sampled.token_ids)
            pieces.append(sampled)
        return VerifiedSamples(places, pieces, self._batch.handles[places.slots].astype(np.uint32))

    def note_launched(self, samples: VerifiedSamples, download: Download) -> None:
        """Store the step whose new tokens are not counted yet."""
        self._pending = (samples, download)

    def settle(self) -> None:
        """Wait for the last step with drafts, and count its new tokens."""
        if self._pending is None:
            return
        (samples, download), self._pending = self._pending, None
        places = samples.places
        self._state.take_in(places.slots[places.first], samples.counts(download.wait()))

    def forget(self) -> None:
        """Forget the pending step: all of its requests were removed."""
        self._pending = None
