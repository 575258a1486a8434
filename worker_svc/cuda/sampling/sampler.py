"""Sampler of the CUDA device: the order and the rules of sampler/sampler.py, as launched kernels without waits.

Owned by the runner, on the compute thread. A greedy step without further parameters is one kernel. Logits stay unchanged
unless a processor changes them; truncation and draw compute their weights on the fly. Sampled tokens stay on the device, and
results are read after the runner has copied them to the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import GrammarRows, Ints, NewRequest
from tetrad.worker_svc.core.sampler_options import LogprobsMode
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.sampling.allowed_ids import DeviceAllowedIds
from tetrad.worker_svc.cuda.sampling.bad_words import DeviceBadWords
from tetrad.worker_svc.cuda.sampling.biases import DeviceBiases, bias_of_early_ends, bias_of_request
from tetrad.worker_svc.cuda.sampling.custom import CustomChange, DeviceCustomProcessors
from tetrad.worker_svc.cuda.sampling.grammar import grammar_change
from tetrad.worker_svc.cuda.sampling.interface import DeviceProcessor, LogitsChange
from tetrad.worker_svc.cuda.sampling.logprobs import TENSORS_A_GROUP, AskedGroup, DeviceLogprobs, gather_group, read_group
from tetrad.worker_svc.cuda.sampling.parameters import SamplingParameters
from tetrad.worker_svc.cuda.sampling.penalties import DevicePenalties
from tetrad.worker_svc.cuda.sampling.rows import SamplingRows
from tetrad.worker_svc.cuda.sampling.scores import make_device_scores
from tetrad.worker_svc.cuda.sampling.state import DeviceState
from tetrad.worker_svc.cuda.sampling.thinking_budget import DeviceThinkingBudget
from tetrad.worker_svc.kernels.argmax import argmax
from tetrad.worker_svc.kernels.draw import block_masses, draw
from tetrad.worker_svc.kernels.truncation import truncate
from tetrad.worker_svc.sampler.custom_classes import NamedProcessor
from tetrad.worker_svc.sampler.failures import failures, with_errors
from tetrad.worker_svc.sampler.sampler import Sampled


@dataclass(frozen=True, slots=True)
class DeviceSampled:
    """The samples of a launched step."""

    token_ids: torch.Tensor
    """[R] int32; a failed row has an arbitrary id of the vocabulary."""
    tensors: list[torch.Tensor]
    """The tensors that have to be copied to the host for `read`."""
    groups: Sequence[AskedGroup]
    """Groups of rows whose log-probabilities are in `tensors`."""
    custom: CustomChange | None = None
    """What custom processors did; its tensors are the last ones."""

    def read(self, arrays: list[np.ndarray]) -> Sampled:
        """Return the samples on the host, from the copies of `tensors`; safe on any thread."""
        token_ids, largest = arrays[0]
        end = 1 + TENSORS_A_GROUP * len(self.groups)
        of_groups = [arrays[start : start + TENSORS_A_GROUP] for start in range(1, end, TENSORS_A_GROUP)]
        errors = () if self.custom is None else self.custom.read(arrays[end:])
        return Sampled(
            token_ids.astype(np.int64),
            [(group.rows, read_group(copies)) for group, copies in zip(self.groups, of_groups, strict=True)],
            with_errors(failures(largest.view(np.float32)), errors),
        )


class DeviceSampler:
    """Chooses tokens for the requests of an input batch; a SlotListener.

    Args:
        accelerator: the device with the logits.
        state: the tokens on the device, up to the last one before those to be sampled.
        batch: the requests; it may lack the ids of tokens that are sampled but not copied to the host yet.
        vocab_size: number of columns of the logits.
        processors: the custom logits processors.
        logprobs_mode: the values that requests get as log-probabilities.

    Attributes:
        check: raises the error of a request that a custom processor refuses; called before `add`.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        state: DeviceState,
        batch: InputBatch,
        vocab_size: int,
        processors: Sequence[NamedProcessor] = (),
        logprobs_mode: LogprobsMode = LogprobsMode.RAW_LOGPROBS,
    ) -> None:
        self._accelerator, self._batch = accelerator, batch
        parameters = self._parameters = SamplingParameters(accelerator, batch.max_num_seqs)
        self._before_grammar: tuple[DeviceProcessor, ...] = (DeviceAllowedIds(accelerator, vocab_size),)
        self._after_grammar: tuple[DeviceProcessor, ...] = (
            DeviceBadWords(accelerator, state, parameters),
            DeviceBiases(accelerator, bias_of_request),
            DeviceBiases(accelerator, bias_of_early_ends),
        )
        self._custom = DeviceCustomProcessors(state, processors)
        self._after_custom: tuple[DeviceProcessor, ...] = (
            DevicePenalties(accelerator, state, parameters, vocab_size),
            DeviceThinkingBudget(accelerator, state, parameters),
        )
        self._logprobs = DeviceLogprobs(accelerator)
        self._scores, self._has_logits = make_device_scores(logprobs_mode, parameters), logprobs_mode.has_logits
        self._listeners = (
            parameters,
            *self._before_grammar,
            *self._after_grammar,
            self._custom,
            *self._after_custom,
            self._logprobs,
        )
        self.check = self._custom.check
        self._nothing_cut = torch.zeros(batch.max_num_seqs, device=accelerator.device)

    def add(self, slot: int, request: NewRequest) -> None:
        """Store a request's sampling parameters."""
        for listener in self._listeners:
            listener.add(slot, request)

    def remove(self, slot: int) -> None:
        """Delete a slot's sampling parameters."""
        for listener in self._listeners:
            listener.remove(slot)

    @torch.inference_mode()
    def sample(
        self, logits: torch.Tensor, slots: Ints, grammar: GrammarRows | None, places: Ints | None = None
    ) -> DeviceSampled:
        """Launch the sampling of a token for each row of logits [R, V], which are overwritten; row r belongs to slots[r].

        The logits are float32, bfloat16 or float16. A token's position is the request's number of tokens plus the number of
        drafts before it, `places` [R]. All rows of a request must be included, in order.
        """
        rows = SamplingRows(self._accelerator, self._batch, slots, places)
        groups = self._logprobs.asked(slots)
        custom = self._custom.change_for(rows)
        raw, changes = logits, self._changes(rows, grammar, custom)
        if changes:
            self._parameters.catch_up()
            logits = logits.to(torch.float32, copy=bool(groups) and self._scores.keeps_raw)
        for change in changes:
            change(logits)
        chosen, thresholds = self._choose(logits, rows)
        gathered: list[torch.Tensor] = []
        if groups:
            scores = self._scores.of(raw, logits, rows, thresholds)
            gathered = [
                each for group in groups for each in gather_group(scores, chosen[0], group, has_logits=self._has_logits)
            ]
        left = [] if custom is None else custom.tensors
        return DeviceSampled(chosen[0], [chosen, *gathered, *left], groups, custom)

    def guess(self, logits: torch.Tensor, slots: Ints, places: Ints) -> torch.Tensor:
        """Choose tokens [R] int32 from a draft model's logits [R, V], with temperature, truncation and noise; see `sample`."""
        return self._choose(logits, SamplingRows(self._accelerator, self._batch, slots, places))[0][0]

    def draws(self, slots: Ints) -> bool:
        """Return whether any of these slots draws its tokens; if so, its parameters are on the device."""
        if self._parameters.is_greedy[slots].all():
            return False
        self._parameters.catch_up()
        return True

    def guess_recorded(
        self, logits: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, *, draws: bool
    ) -> torch.Tensor:
        """Choose tokens [R] int32 as `guess` does, within a graph: slots and positions [R] int64 are on the device.

        `draws`: what `draws` returns for the slots of a replay.
        """
        return (self._draw(logits, slots, positions, cuts=True)[0] if draws else argmax(logits))[0]

    def _changes(self, rows: SamplingRows, grammar: GrammarRows | None, custom: CustomChange | None) -> list[LogitsChange]:
        """Return the changes of a step's logits, in the order of application."""
        changes = [
            *(processor.change_for(rows) for processor in self._before_grammar),
            grammar_change(rows, grammar),
            *(processor.change_for(rows) for processor in self._after_grammar),
            custom,
            *(processor.change_for(rows) for processor in self._after_custom),
        ]
        return [change for change in changes if change is not None]

    def _choose(self, logits: torch.Tensor, rows: SamplingRows) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the rows' tokens and largest logits, see argmax, and the thresholds of drawn rows; None: all are greedy."""
        if not self.draws(rows.slots):
            return argmax(logits), None
        return self._draw(logits, *rows.on_device, cuts=bool(self._parameters.is_cut[rows.slots].any()))

    def _draw(
        self, logits: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, *, cuts: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return drawn tokens and largest logits, and thresholds; `cuts`: whether any row may have a truncation."""
        parameters = self._parameters
        peaks, masses = block_masses(logits, slots, parameters.temperature)
        if len(slots) > len(self._nothing_cut):  # drafts have separate rows
            self._nothing_cut = torch.zeros(len(slots), device=self._accelerator.device)
        thresholds = self._nothing_cut
        if cuts:
            limits = parameters.top_k, parameters.top_p, parameters.min_p
            thresholds = truncate(logits, peaks, masses, slots, parameters.temperature, *limits)
        chosen = draw(logits, peaks, masses, thresholds, slots, positions, parameters.temperature, parameters.seeds)
        return chosen, thresholds
