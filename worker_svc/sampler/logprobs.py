"""Logprobs: gathers the requested log-probabilities from the raw distribution.

Rows with the same number of candidates are gathered together, so that a request for the whole vocabulary costs the others
nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from tetrad.worker_svc.core.plan import Floats, Ints, LogprobRows, NewRequest, SamplingSpec
from tetrad.worker_svc.sampler.processors import PerSlot

WHOLE_VOCABULARY = -1


class AskedLogprobs(NamedTuple):
    """Rows that want candidates of one width: the `num_top` most likely ones, or exactly `ids`."""

    rows: Ints  # [n], of the step
    places: Ints  # [n], of the rows that ask
    num_top: int
    ids: Ints | None  # [n, width - 1]


class AskedRows(NamedTuple):
    """All rows of a step that ask, and the same divided by width."""

    rows: Ints
    groups: Sequence[AskedLogprobs]


def asked_logprobs(request: NewRequest) -> SamplingSpec | None:
    """Return the parameters of a request that asks for log-probabilities; else None."""
    sampling = request.sampling
    return sampling if sampling.num_logprobs is not None or sampling.logprob_token_ids else None


def by_width(rows: Ints, requests: Sequence[SamplingSpec]) -> AskedRows:
    """Divide rows that ask by what they ask for."""
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
        self._buffer = torch.empty(0)

    def add(self, slot: int, request: NewRequest) -> None:
        """Remember a request that asks."""
        self._asked.add(slot, request)

    def remove(self, slot: int) -> None:
        """Forget the slot."""
        self._asked.remove(slot)

    def concerns(self, slots: Ints) -> bool:
        """Return whether any row asked."""
        return self._asked.of(slots) is not None

    def asked(self, slots: Ints) -> AskedRows | None:
        """Return which rows of a step ask; None if none does."""
        return self._asked.of(slots)

    def raw(self, logits: torch.Tensor, asked: AskedRows) -> torch.Tensor:
        """Return the log-probabilities [asking rows, V] of logits [R, V], good until the next call."""
        chosen = logits if len(asked.rows) == len(logits) else logits[torch.from_numpy(asked.rows)]
        if self._buffer.numel() < chosen.numel():
            # Kept between steps: fresh memory for it would cost more than what is written there.
            self._buffer = torch.empty(chosen.numel())
        return torch.log_softmax(chosen, 1, out=self._buffer[: chosen.numel()].view(chosen.shape))

    def gather(self, raw: torch.Tensor, tokens: Ints, asked: AskedRows) -> list[tuple[Ints, LogprobRows]]:
        """Return (rows, their log-probabilities), width by width.

        Args:
            raw: what `raw` returned.
            tokens: [R], sampled.
            asked: what `asked` returned.
        """
        return [(group.rows, _gather(raw, tokens[group.rows], group)) for group in asked.groups]


def gather_logprobs(logprobs: torch.Tensor, actual: Ints, num_top: int) -> LogprobRows:
    """Return the rows' log-probabilities: the actual token first, then the `num_top` most likely ones.

    Args:
        logprobs: [P, V] float32.
        actual: [P], the sampled (for a prompt: the actual) tokens.
        num_top: WHOLE_VOCABULARY means all.
    """
    values = logprobs.numpy()
    chosen = values[np.arange(len(actual)), actual]
    ids, top = _sorted(values) if num_top in (WHOLE_VOCABULARY, logprobs.shape[1]) else _top(logprobs, num_top)
    return _rows(actual, chosen, ids, top, _ranks(values, chosen, top))


def _sorted(values: Floats) -> tuple[Ints, Floats]:
    """Return all ids of rows [P, V] and their values, in falling order; numpy sorts in a sixth of the time of torch's topk."""
    ids = np.argsort(-values, axis=1)
    return ids, np.take_along_axis(values, ids, 1)


def _top(logprobs: torch.Tensor, num_top: int) -> tuple[Ints, Floats]:
    top = logprobs.topk(num_top)
    return top.indices.numpy(), top.values.numpy()


def _gather(raw: torch.Tensor, actual: Ints, group: AskedLogprobs) -> LogprobRows:
    chosen_rows = raw if len(group.places) == len(raw) else raw[torch.from_numpy(group.places)]
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
    """Return 1 + how many of each row's values [P, V] exceed the chosen one; its largest ones [P, k] are known."""
    ranks: Ints = 1 + (top > chosen[:, None]).sum(1)
    is_below = (chosen < top[:, -1]) if top.shape[1] else np.ones(len(chosen), np.bool_)
    if is_below.any():
        ranks[is_below] = 1 + np.count_nonzero(values[is_below] > chosen[is_below, None], axis=1)
    return ranks
