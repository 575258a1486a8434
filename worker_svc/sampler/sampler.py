"""Sampler: one vectorised pass over all rows that sample in a step.

Order: raw scores, allowed ids, grammar, bad words, logit bias, min_tokens, custom processors, penalties, speech rules,
thinking budget, processed scores, temperature, min_p, top_k, top_p, draw, gather. Owned by the model runner, on the compute
thread. Parameters live in arrays by slot; a step without logprobs or processors in which every row is greedy needs only the
argmax of the logits.
A row without an allowed token fails alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from tetrad.services.errors import TetradError
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import Floats, GrammarRows, Ints, NewRequest
from tetrad.worker_svc.core.result import LogprobRows, join_rows
from tetrad.worker_svc.core.sampler_options import LogprobsMode
from tetrad.worker_svc.layers.argmax import argmax
from tetrad.worker_svc.sampler.allowed_ids import AllowedIds
from tetrad.worker_svc.sampler.bad_words import BadWords
from tetrad.worker_svc.sampler.custom import CustomProcessors
from tetrad.worker_svc.sampler.custom_classes import NamedProcessor
from tetrad.worker_svc.sampler.draw import block_sums, draw, weigh_
from tetrad.worker_svc.sampler.failures import failures, with_errors
from tetrad.worker_svc.sampler.grammar import apply_grammar
from tetrad.worker_svc.sampler.logit_bias import LogitBias
from tetrad.worker_svc.sampler.logprobs import SampleLogprobs
from tetrad.worker_svc.sampler.min_tokens import MinTokens
from tetrad.worker_svc.sampler.penalties import Penalties
from tetrad.worker_svc.sampler.processors import LogitsProcessor
from tetrad.worker_svc.sampler.scores import DrawnRows, make_scores
from tetrad.worker_svc.sampler.speech_rules import SpeechRules
from tetrad.worker_svc.sampler.thinking_budget import ThinkingBudget
from tetrad.worker_svc.sampler.truncation import TruncationRows, truncate

LEAST_TEMPERATURE = 0.01
"""Smallest temperature; lower ones are raised to it, as in vLLM, because exp would overflow while results hardly change."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token for each row (without meaning if the row failed), and logprobs of rows, grouped by number of candidates."""

    token_ids: Ints  # [R]
    logprobs: Sequence[tuple[Ints, LogprobRows]] = ()
    failures: Sequence[tuple[int, TetradError]] = ()

    def without_failed(self) -> tuple["Sampled", Ints]:
        """Return the samples of the rows that did not fail, and the indices of these rows."""
        stays = ~self.has_failed()
        return self.select(stays), np.flatnonzero(stays)

    def has_failed(self) -> npt.NDArray[np.bool_]:
        """Return for each row [R] whether it failed."""
        failed = np.zeros(len(self.token_ids), np.bool_)
        failed[[row for row, _ in self.failures]] = True
        return failed

    def select(self, rows: npt.NDArray[np.bool_]) -> "Sampled":
        """Return the samples where `rows` [R] is true."""
        places = np.cumsum(rows) - 1
        logprobs = [(places[asked[rows[asked]]], found.select(rows[asked])) for asked, found in self.logprobs]
        failed = [(int(places[row]), error) for row, error in self.failures if rows[row]]
        return Sampled(self.token_ids[rows], logprobs, failed)


def join_sampled(parts: Sequence[Sampled]) -> Sampled:
    """Concatenate the rows of all parts, with one entry of log-probabilities for each number of candidates."""
    starts = np.cumsum([0, *(len(part.token_ids) for part in parts)]).tolist()
    by_width: dict[int, list[tuple[Ints, LogprobRows]]] = {}
    for start, part in zip(starts, parts, strict=False):
        for rows, found in part.logprobs:
            by_width.setdefault(found.token_ids.shape[1], []).append((rows + start, found))
    return Sampled(
        np.concatenate([part.token_ids for part in parts]),
        [(np.concatenate([rows for rows, _ in found]), join_rows([each for _, each in found])) for found in by_width.values()],
        [(row + start, error) for start, part in zip(starts, parts, strict=False) for row, error in part.failures],
    )


class Sampler:
    """Chooses tokens for the requests of an input batch.

    Attributes:
        check: raises the error of a request that a custom processor refuses; called before `add`.

    Args:
        batch: holds the requests' tokens.
        vocab_size: number of columns of the logits.
        processors: the custom logits processors.
        logprobs_mode: the values that requests get as log-probabilities.
    """

    def __init__(
        self,
        batch: InputBatch,
        vocab_size: int,
        processors: Sequence[NamedProcessor] = (),
        logprobs_mode: LogprobsMode = LogprobsMode.RAW_LOGPROBS,
    ) -> None:
        self._batch = batch
        self._before_grammar: tuple[LogitsProcessor, ...] = (AllowedIds(),)
        self._after_grammar: tuple[LogitsProcessor, ...] = (BadWords(), LogitBias(), MinTokens())
        self._custom = CustomProcessors(processors)
        self._after_custom: tuple[LogitsProcessor, ...] = (Penalties(vocab_size), SpeechRules(), ThinkingBudget())
        self._logprobs, self._scores = SampleLogprobs(), make_scores(logprobs_mode)
        self._listeners = (
            *self._before_grammar,
            *self._after_grammar,
            self._custom,
            *self._after_custom,
            self._logprobs,
        )
        self.check = self._custom.check
        slots = batch.max_num_seqs
        self._is_greedy = np.ones(slots, np.bool_)
        self._temperature = np.ones(slots, np.float32)
        self._truncation = TruncationRows(np.zeros(slots, np.int64), np.ones(slots), np.zeros(slots))
        self._seeds = np.zeros(slots, np.int64)

    def add(self, slot: int, request: NewRequest) -> None:
        """Store a request's sampling parameters."""
        sampling = request.sampling
        self._is_greedy[slot] = sampling.is_greedy
        self._temperature[slot] = max(sampling.temperature, LEAST_TEMPERATURE)
        self._truncation.top_k[slot] = sampling.top_k
        self._truncation.top_p[slot] = sampling.top_p
        self._truncation.min_p[slot] = sampling.min_p
        self._seeds[slot] = sampling.seed
        for listener in self._listeners:
            listener.add(slot, request)

    def remove(self, slot: int) -> None:
        """Delete a slot's parameters."""
        for listener in self._listeners:
            listener.remove(slot)

    def needs_logits(self, slots: Ints, grammar: GrammarRows | None) -> bool:
        """Return whether sampling needs all logits of these rows; otherwise the largest ones suffice, see `take`."""
        if grammar is not None or not self._is_greedy[slots].all():
            return True
        return any(each.concerns(slots) for each in self._listeners)

    def take(self, tokens: Ints, largest: Floats) -> Sampled:
        """Return the tokens [R] of the largest logits [R] as samples."""
        return Sampled(tokens, failures=failures(largest))

    def sample(self, logits: torch.Tensor, slots: Ints, grammar: GrammarRows | None) -> Sampled:
        """Sample a token for each row of logits [R, V], which are overwritten; row r belongs to the request in slots[r]."""
        asked = self._logprobs.asked(slots)
        if asked is not None:
            self._scores.see_raw(logits, asked.rows)
        for processor in self._before_grammar:
            processor.apply(logits, slots, self._batch)
        apply_grammar(logits, self._batch.handles[slots], grammar)
        for processor in self._after_grammar:
            processor.apply(logits, slots, self._batch)
        errors = self._custom.apply(logits, slots, self._batch)
        for processor in self._after_custom:
            processor.apply(logits, slots, self._batch)
        if asked is not None:
            self._scores.see_processed(logits, asked.rows)
        tokens, largest, drawn = self._choose(logits, slots)
        gathered = () if asked is None else self._logprobs.gather(self._scores.values(drawn), tokens, asked)
        return Sampled(tokens, gathered, with_errors(failures(largest), errors))

    def draws(self, slots: Ints) -> bool:
        """Return whether any of these rows is sampled at random, not greedily."""
        return not self._is_greedy[slots].all()

    def guess(self, logits: torch.Tensor, slots: Ints) -> Ints:
        """Choose tokens from a draft model's logits [R, V] with temperature, truncation and noise, without processors."""
        tokens, _, _ = self._choose(logits, slots)
        return tokens

    def _choose(self, logits: torch.Tensor, slots: Ints) -> tuple[Ints, Floats, DrawnRows | None]:
        """Return the rows' tokens and largest logits, and the rows that were drawn at random."""
        drawn_rows = np.flatnonzero(~self._is_greedy[slots])
        if len(drawn_rows) == len(slots):
            return self._draw(logits, slots, drawn_rows)
        tokens, largest = argmax(logits)
        drawn = None
        if len(drawn_rows):
            tokens[drawn_rows], _, drawn = self._draw(logits[torch.from_numpy(drawn_rows)], slots[drawn_rows], drawn_rows)
        return tokens, largest, drawn

    def _draw(self, logits: torch.Tensor, slots: Ints, rows: Ints) -> tuple[Ints, Floats, DrawnRows]:
        """Draw a token for each row of logits [D, V], which are overwritten; `rows` [D]: their indices in the step's rows."""
        largest, temperature = logits.amax(1), torch.from_numpy(self._temperature[slots])
        weights = weigh_(logits, largest, temperature)
        sums = block_sums(weights)
        thresholds = truncate(weights, sums, self._truncation.select(slots))
        tokens = draw(weights, sums, thresholds, self._seeds[slots], self._batch.num_tokens[slots])
        return tokens, largest.numpy(), DrawnRows(rows, weights, thresholds, temperature)
