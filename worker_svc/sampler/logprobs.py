"""Logprobs: gathers the requested log-probabilities from a step's scores.

Rows with the same number of candidates are gathered together, so that a request for the whole vocabulary does not slow down the
others.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from tetrad.worker_svc.core.plan import Floats, Ints, NewRequest, SamplingSpec
from tetrad.worker_svc.core.result import LogprobRows
from tetrad.worker_svc.sampler.processors import PerSlot

WHOLE_VOCABULARY = -1


class AskedLogprobs(NamedTuple):
    """Rows with the same number of candidates: the `num_top` most likely tokens, or exactly `ids`."""

    rows: Ints  # [n], indices in the step's rows
    places: Ints  # [n], indices in the rows with logprobs
    num_top: int
    ids: Ints | None  # [n, width - 1]


class AskedRows(NamedTuple):
    """All rows of a step with logprobs, and the same rows grouped by number of candidates."""

    rows: Ints
    groups: Sequence[AskedLogprobs]


def asked_logprobs(request: NewRequest) -> SamplingSpec | None:
    """Return the parameters of a request with logprobs; None if it has no logprobs."""
    sampling = request.sampling
    return sampling if sampling.num_logprobs is not None or sampling.logprob_token_ids else None


def by_width(rows: Ints, requests: Sequence[SamplingSpec]) -> AskedRows:
    """Group rows with logprobs by their kind and number of candidates."""
    places: dict[tuple[bool, int], list[int]] = {}
    for place, sampling in enumerate(requests):
        ids = sampling.logprob_token_ids
        places.setdefault((bool(ids), len(ids) or sampling.num_logprobs or 0), []).append(place)
    groups = []
    for (has_ids, width), members in places.items():
        chosen = np.array([requests[place].logprob_token_ids for place in members], np.int64) if has_ids else None
        groups.append(AskedLogprobs(rows[members], np.array(members, np.int64), 0 if has_ids else width, chosen))
    return AskedRows(rows, groups)


class SampleLogprobs:
    """A SlotListener that gathers the log-probabilities of sampled tokens for the requests with logprobs."""

    def __init__(self) -> None:
        self._asked: PerSlot[SamplingSpec, AskedRows] = PerSlot(asked_logprobs, by_width)

    def add(self, slot: int, request: NewRequest) -> None:
        """Store the request if it has logprobs."""
        self._asked.add(slot, request)

    def remove(self, slot: int) -> None:
        """Delete the slot's request."""
        self._asked.remove(slot)

    def concerns(self, slots: Ints) -> bool:
        """Return whether any row has logprobs."""
        return self._asked.of(slots) is not None

    def asked(self, slots: Ints) -> AskedRows | None:
        """Return the rows of a step with logprobs; None if no row has them."""
        return self._asked.of(slots)

    def gather(self, scores: torch.Tensor, tokens: Ints, asked: AskedRows) -> list[tuple[Ints, LogprobRows]]:
        """Return (rows, their log-probabilities) for each number of candidates.

        Args:
            scores: [rows with logprobs, V], see scores.py.
            tokens: [R], the sampled tokens.
            asked: the result of `asked`.
        """
        return [(group.rows, _gather(scores, tokens[group.rows], group)) for group in asked.groups]


def gather_logprobs(logprobs: torch.Tensor, actual: Ints, num_top: int) -> LogprobRows:
    """Return the rows' log-probabilities: the actual token first, then the `num_top` most likely ones.

    Args:
        logprobs: [P, V] float32.
        actual: [P], the sampled tokens, or for a prompt its tokens.
        num_top: number of candidates; WHOLE_VOCABULARY: all.
    """
    values = logprobs.numpy()
    chosen = values[np.arange(len(actual)), actual]
    ids, top = _sorted(values) if num_top in (WHOLE_VOCABULARY, logprobs.shape[1]) else _top(logprobs, num_top)
    return _rows(actual, chosen, ids, top, _ranks(values, chosen, top))


def _sorted(values: Floats) -> tuple[Ints, Floats]:
    """Return all ids of rows [P, V] and their values, in descending order; numpy's sort takes a sixth of torch's topk."""
    ids = np.argsort(-values, axis=1)
    return ids, np.take_along_axis(values, ids, 1)


def _top(logprobs: torch.Tensor, num_top: int) -> tuple[Ints, Floats]:
    top = logprobs.topk(num_top)
    return top.indices.numpy(), top.values.numpy()


def _gather(scores: torch.Tensor, actual: Ints, group: AskedLogprobs) -> LogprobRows:
    chosen_rows = scores if len(group.places) == len(scores) else scores[torch.from_numpy(group.places)]
    if group.ids is None:
        return gather_logprobs(chosen_rows, actual, group.num_top)
    values, every = chosen_rows.numpy(), np.arange(len(actual))
    chosen = values[every, actual]
    return _rows(actual, chosen, group.ids, values[every[:, None], group.ids], _ranks(values, chosen, values[:, :0]))


def _rows(actual: Ints, chosen: Floats, ids: Ints, values: Floats, ranks: Ints) -> LogprobRows:
    return LogprobRows(
        token_ids=np.concatenate([actual[:, None], ids], 1).astype(np.uint32),
        logprobs=np.concatenate([chosen[:, None], values], 1),
        ranks=ranks.astype(np.uint32),
    )


def _ranks(values: Floats, chosen: Floats, top: Floats) -> Ints:
    """Return 1 + the number of each row's values [P, V] above the chosen one; `top` [P, k] are the row's largest values."""
    ranks: Ints = 1 + (top > chosen[:, None]).sum(1)
    is_below = (chosen < top[:, -1]) if top.shape[1] else np.ones(len(chosen), np.bool_)
    if is_below.any():
        ranks[is_below] = 1 + np.count_nonzero(values[is_below] > chosen[is_below, None], axis=1)
    return ranks
