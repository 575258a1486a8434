"""Token times: gathers the weights of cross-attention for tokens of a prompt, and returns when these tokens are said.

Requests ask for them in place of scores (PromptScoreIds.num_positions in types.proto). Called by the model runner as
prompt_scores.py is. A request that is preempted before its first output token is computed and gathered again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from tetrad.services.errors import InvalidRequest, Unsupported
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.media import AlignsTokens, ModelMedia
from tetrad.worker_svc.core.plan import NewRequest
from tetrad.worker_svc.core.request_table import SlotPart
from tetrad.worker_svc.core.result import PromptScores
from tetrad.worker_svc.core.step_inputs import StepInputs
from tetrad.worker_svc.media.time_warping import token_starts

_FIELD = "prompt_score_ids"


class TokenTimes(SlotPart, Protocol):
    """The token times of a runner's requests."""

    def placed(self, inputs: StepInputs, batch: InputBatch) -> StepInputs:
        """Return the inputs with a sink of weights for each row that asks for times."""

    def finished(self, inputs: StepInputs) -> list[PromptScores]:
        """Return the times of the prompts whose last token was in this step, in positions of the encoder's output."""


class NoTokenTimes:
    """The TokenTimes of a model without cross-attention."""

    def add(self, slot: int, request: NewRequest) -> None:
        """Do nothing: `check` has refused times."""

    def remove(self, slot: int) -> None:
        """Do nothing: no slot asks for times."""

    def check(self, request: NewRequest) -> None:
        """Raise Unsupported if the request asks for times."""
        asked = request.sampling.score_ids
        if asked is not None and asked.num_positions is not None:
            raise Unsupported("The model on this worker attends to no audio: num_positions is not supported.", field=_FIELD)

    def placed(self, inputs: StepInputs, batch: InputBatch) -> StepInputs:  # noqa: ARG002 - of TokenTimes
        """Return the inputs."""
        return inputs

    def finished(self, inputs: StepInputs) -> list[PromptScores]:  # noqa: ARG002 - of TokenTimes
        """Return nothing."""
        return []


@dataclass(frozen=True, slots=True)
class _Asked:
    """The request of a slot: times of the tokens behind `start`, in the first `num_positions` of the encoder's output.

    `gathered` has the weights of each head, one tensor [tokens, positions] a chunk.
    """

    start: int
    num_positions: int
    gathered: list[list[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class _Sink:
    """The WeightSink of one row of a step; `tokens` are those of the row whose weights are gathered."""

    handle: int
    asked: _Asked
    places: Mapping[int, Sequence[tuple[int, int]]]
    tokens: slice
    is_last: bool

    def take(self, layer: int, weights: torch.Tensor) -> None:
        """Store the weights [heads, tokens, positions] of the layer's heads that follow the audio."""
        for place, head in self.places.get(layer, ()):
            self.asked.gathered[place].append(weights[head, self.tokens, : self.asked.num_positions].clone())


class AlignedTimes:
    """The TokenTimes of a model with cross-attention.

    Args:
        tower: names the heads that follow the audio.
    """

    def __init__(self, tower: AlignsTokens) -> None:
        heads, self._filter_width = tower.alignment
        self._num_heads, self._most = len(heads), tower.modalities[0].max_embeds_per_item
        places: dict[int, list[tuple[int, int]]] = {}
        for place, (layer, head) in enumerate(heads):
            places.setdefault(layer, []).append((place, head))
        self._places = places
        self._asked: dict[int, _Asked] = {}

    def add(self, slot: int, request: NewRequest) -> None:
        """Store the request if it asks for times."""
        asked = request.sampling.score_ids
        if asked is not None and asked.num_positions is not None:
            self._asked[slot] = _Asked(asked.start, asked.num_positions, [[] for _ in range(self._num_heads)])

    def remove(self, slot: int) -> None:
        """Delete the slot's state."""
        self._asked.pop(slot, None)

    def check(self, request: NewRequest) -> None:
        """Raise InvalidRequest for more positions than the encoder has, or without an item."""
        asked = request.sampling.score_ids
        if asked is None or asked.num_positions is None:
            return
        if not 1 <= asked.num_positions <= self._most:
            text = f"{_FIELD}.num_positions must be in [1, {self._most}], got {asked.num_positions}."
            raise InvalidRequest(text, field=_FIELD)
        if not request.media:
            raise InvalidRequest(f"{_FIELD}.num_positions needs an item that the tokens attend to.", field=_FIELD)

    def placed(self, inputs: StepInputs, batch: InputBatch) -> StepInputs:
        """See TokenTimes."""
        slots = inputs.slots.tolist()
        if self._asked.keys().isdisjoint(slots):
            return inputs
        return replace(inputs, sinks=[self._sink(inputs, batch, row, slot) for row, slot in enumerate(slots)])

    def finished(self, inputs: StepInputs) -> list[PromptScores]:
        """See TokenTimes."""
        return [self._times(sink) for sink in inputs.sinks if isinstance(sink, _Sink) and sink.is_last]

    def _sink(self, inputs: StepInputs, batch: InputBatch, row: int, slot: int) -> _Sink | None:
        asked = self._asked.get(slot)
        begin, count = int(inputs.num_computed[row]), int(inputs.num_scheduled[row])
        last = int(batch.num_prompt_tokens[slot]) - 1  # it begins no token of the prompt
        if asked is None or begin > last or begin + count <= asked.start:
            return None
        tokens = slice(max(asked.start - begin, 0), min(count, last - begin))
        return _Sink(int(batch.handles[slot]), asked, self._places, tokens, begin + count > last)

    def _times(self, sink: _Sink) -> PromptScores:
        weights = torch.stack([torch.cat(parts) for parts in sink.asked.gathered])
        starts = token_starts(weights, self._filter_width)
        return PromptScores(sink.handle, starts.astype(np.float32)[:, None])


def token_times(media: ModelMedia | None) -> TokenTimes:
    """Return the token times of a runner's requests; `media` is None if the model takes only text."""
    if media is None or not isinstance(media.tower, AlignsTokens):
        return NoTokenTimes()
    return AlignedTimes(media.tower)
