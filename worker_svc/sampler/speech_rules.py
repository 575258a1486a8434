"""Speech rules: which tokens Whisper may write, and when it has to write a timestamp.

Source: transformers' WhisperTimeStampLogitsProcessor, which follows ApplyTimestampRules of openai/whisper's decoding.py; an
output does not end between a pair of timestamps and their text, unless the end of the audio is near. A pure function of a
request's output, so preemption, recovery and steps in flight do not change the result.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import Ints, NewRequest, TimestampRules
from tetrad.worker_svc.sampler.processors import MASKED, PerSlot


class _Rules(NamedTuple):
    """The rules of a request: ids that are never written, ids that are not written first, and those of timestamps.

    Attributes:
        end_id: id of the end of text; all smaller ids are text.
    """

    never: torch.Tensor  # [N] int64
    not_first: torch.Tensor  # [N] int64
    times: TimestampRules | None
    end_id: int


def _rules_of(request: NewRequest) -> _Rules | None:
    rules = request.sampling.speech_rules
    if rules is None:
        return None
    never, not_first = (torch.tensor(ids, dtype=torch.int64) for ids in (rules.suppressed_ids, rules.suppressed_first_ids))
    return _Rules(never, not_first, rules.timestamps, request.eos_token_id or 0)


class SpeechRules:
    """The LogitsProcessor of speech rules."""

    def __init__(self) -> None:
        self._rules: PerSlot[_Rules, tuple[Ints, Sequence[_Rules]]] = PerSlot(_rules_of, lambda rows, rules: (rows, rules))

    def add(self, slot: int, request: NewRequest) -> None:
        """Store the request's rules."""
        self._rules.add(slot, request)

    def remove(self, slot: int) -> None:
        """Delete the slot's rules."""
        self._rules.remove(slot)

    def concerns(self, slots: Ints) -> bool:
        """Return whether any row has rules."""
        return self._rules.of(slots) is not None

    def apply(self, logits: torch.Tensor, slots: Ints, batch: InputBatch) -> None:
        """Mask the ids that may not follow in the rows that have rules."""
        found = self._rules.of(slots)
        if found is None:
            return
        for row, rules in zip(found[0].tolist(), found[1], strict=True):
            slot = slots[row]
            output = batch.token_ids[slot, batch.num_prompt_tokens[slot] : batch.num_tokens[slot]]
            values = logits[row]
            values[rules.never] = MASKED
            if not len(output):
                values[rules.not_first] = MASKED
            if rules.times is not None:
                _apply_times(values, output, rules.times, rules.end_id)


def _apply_times(logits: torch.Tensor, output: npt.NDArray[np.int32], times: TimestampRules, end_id: int) -> None:
    """Mask the ids [V] that may not follow an output: timestamps come in pairs and in order, and begin every output."""
    first = times.first_id
    written = output[output >= first]
    if not len(output):
        logits[:first] = MASKED
        logits[first + times.max_initial + 1 :] = MASKED
    elif output[-1] >= first:
        if len(output) < 2 or output[-2] >= first:  # behind a pair, or behind the first one, text follows
            logits[first:] = MASKED
            if len(output) > 1 and output[-1] < first + times.written_before:
                # A sentence that has begun is written. Whisper's own decoder would read the rest again in its next window.
                logits[end_id] = MASKED
        else:  # the end of a sentence: the beginning of the next one, or the end of text
            logits[:end_id] = MASKED
            logits[first : int(written[-1])] = MASKED
    elif len(written):  # a sentence lasts longer than nothing
        logits[first : int(written[-1]) + 1] = MASKED
    # A timestamp is written if one is likelier than the likeliest other token, whichever it is.
    if logits[first:].logsumexp(0) > logits[:first].max():
        logits[:first] = MASKED
