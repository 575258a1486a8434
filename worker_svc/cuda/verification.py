"""Verification of drafts on the device: samples in all places of all drafts at once, and keeps the tokens behind right drafts.

Called by the CUDA runner, on the compute thread. A place behind a draft is sampled as if the draft were right: the device has
the drafts behind the known tokens, and noise, penalties and masks follow from the position. Tokens sampled behind a wrong draft
are dropped when the result is read. So tokens are those of a run without drafts, and the host waits for nothing meanwhile. Only
the result says how many tokens a step has brought, and the next step needs to know it: `settle` waits for it. The engine core
sends no plan before it has read that result, so the wait is over by then.
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
"""Places that are sampled at once: half of the rows that the memory profile has, since penalties copy their lines."""


@dataclass(frozen=True, slots=True)
class Places:
    """N places of R requests, request after request. A request with k drafts has k + 1 places.

    Attributes:
        slots: [N], of the requests.
        places: [N], from 0.
        tokens: [N], which of the step's tokens stands before the place.
        drafts: [N], the draft in the place; -1 behind the last one.
        first: [R], the first place of each request.
    """

    slots: Ints
    places: Ints
    tokens: Ints
    drafts: Ints
    first: Ints

    def pieces(self) -> Iterator[slice]:
        """Yield all places in parts of about _ROWS_AT_ONCE, whole requests each."""
        begin, ends = 0, [*self.first[1:].tolist(), len(self.slots)]
        for end, following in zip(ends, [*ends[1:], None], strict=True):
            if following is None or following - begin > _ROWS_AT_ONCE:
                yield slice(begin, end)
                begin = end

    def are_kept(self, token_ids: Ints, has_failed: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return the places [N] that follow right drafts only; behind the first one, a failed place is not kept."""
        is_wrong = (token_ids != self.drafts) | has_failed
        num_wrong = np.cumsum(is_wrong) - is_wrong  # before each place
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
    """Return a row of one token for each token of a step: graphs of decodes run them.

    A token sees those before it: in each layer, all keys of a step are written before any is read.
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
    """See LaunchedSamples: what was sampled in all places of a step.

    Args:
        places: of the step.
        pieces: their samples.
        handles: [N], of the requests.
    """

    def __init__(self, places: Places, pieces: list[DeviceSampled], handles: npt.NDArray[np.uint32]) -> None:
        self.places, self._pieces, self._handles = places, pieces, handles
        self.tensors = [tensor for piece in pieces for tensor in piece.tensors]

    def read(self, arrays: list[np.ndarray]) -> tuple[npt.NDArray[np.uint32], Sampled]:
        """Return the requests and the samples of the places that are kept."""
        sampled, kept = self._sampled(arrays)
        return self._handles[kept], sampled.select(kept)

    def counts(self, arrays: list[np.ndarray]) -> Ints:
        """Return how many tokens each request [R] has more."""
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
        state: the same on the device.
        sampler: chooses tokens.
    """

    def __init__(self, batch: InputBatch, state: DeviceState, sampler: DeviceSampler) -> None:
        self._batch, self._state, self._sampler = batch, state, sampler
        self._pending: tuple[VerifiedSamples, Download] | None = None

    def sample(self, places: Places, logits_of: Callable[[Ints], torch.Tensor], grammar: GrammarRows | None) -> VerifiedSamples:
        """Launch what samples in all places; `logits_of(tokens [N])` gives [N, V], which may be written."""
        pieces = []
        for piece in places.pieces():
            logits = logits_of(places.tokens[piece])
            sampled = self._sampler.sample(logits, places.slots[piece], grammar, places.places[piece])
            self._state.write(places.slots[piece], places.places[piece], sampled.token_ids)
            pieces.append(sampled)
        return VerifiedSamples(places, pieces, self._batch.handles[places.slots].astype(np.uint32))

    def note_launched(self, samples: VerifiedSamples, download: Download) -> None:
        """Remember the step whose tokens are not counted yet."""
        self._pending = (samples, download)

    def settle(self) -> None:
        """Count the tokens of the last step with drafts, which has to have ended."""
        if self._pending is None:
            return
        (samples, download), self._pending = self._pending, None
        places = samples.places
        self._state.take_in(places.slots[places.first], samples.counts(download.wait()))

    def forget(self) -> None:
        """Forget that step: all of its requests are gone."""
        self._pending = None
