"""State layer: runs a recurrence over the rows of a step, and carries the states of sequences through the cache.

Tokens of decodes are computed together; the recurrence computes the tokens of a chunk in order, and drafts one by one, as
decode steps would compute them. All states are read before any state is written. Between the two products all values are
float32. Dims: T tokens, D decode rows, P inputs, S values of a state, O outputs.
"""

from typing import Protocol

import torch

from tetrad.worker_svc.kv_cache.state_rows import StateChunk, StateRows
from tetrad.worker_svc.layers.linear import Linear


class Recurrence(Protocol):
    """The computation of a state layer on the tokens of a sequence, in order. States are changed in place.

    Attributes:
        num_outputs: O.
    """

    num_outputs: int

    def step(self, inputs: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Return the outputs [D, O] of one token of each of D sequences, for inputs [D, P] and states [D, S]."""

    def scan(self, inputs: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Return the outputs [L, O] of L tokens of one sequence, for inputs [L, P] and a state [S]."""

    def gated(self, outputs: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """Apply the layer's gate, computed from inputs [T, P], to outputs [T, O]."""


class StateInputs(Protocol):
    """The computation of a recurrence's inputs."""

    def __call__(self, x: torch.Tensor, cache: torch.Tensor, rows: StateRows) -> torch.Tensor:
        """Return the inputs [T, P] for x [T, hidden]; read the layer's cache [num_blocks, S], as it is before the step."""


class ProjectedInputs:
    """Inputs that depend on their own token alone; see StateInputs.

    Args:
        projection: [hidden] -> [P].
    """

    def __init__(self, projection: Linear) -> None:
        self._projection = projection

    def __call__(
        self,
        x: torch.Tensor,
        cache: torch.Tensor,  # noqa: ARG002 - of the protocol
        rows: StateRows,  # noqa: ARG002 - of the protocol
    ) -> torch.Tensor:
        """See StateInputs."""
        return self._projection(x)


class StateLayer:
    """A layer with a state for each sequence.

    Args:
        inputs: computes the recurrence's inputs.
        recurrence: the computation between the two products.
        output: [O] -> [hidden].
    """

    def __init__(self, inputs: StateInputs, recurrence: Recurrence, output: Linear) -> None:
        self._inputs, self._recurrence, self._output = inputs, recurrence, output

    def __call__(self, x: torch.Tensor, cache: torch.Tensor, rows: StateRows) -> torch.Tensor:
        """Return the output [T, hidden] for x [T, hidden]; read and write the layer's cache [num_blocks, S]."""
        stored = self._inputs(x, cache, rows)
        inputs = stored.float()
        outputs = inputs.new_empty((len(x), self._recurrence.num_outputs))
        chunks = [(chunk, self._state_before(chunk, cache)) for chunk in rows.chunks]
        num_decodes = len(rows.sources)
        if num_decodes:
            states = cache.index_select(0, rows.sources)
            states.index_fill_(0, rows.begun, 0.0)
            outputs[:num_decodes] = self._recurrence.step(inputs[:num_decodes], states)
            cache.index_copy_(0, rows.targets, states)
        for chunk, state in chunks:
            for segment in chunk.segments:
                tokens = slice(segment.start, segment.stop)
                outputs[tokens] = self._in_order(inputs[tokens], state)
                cache[segment.target] = state
            if chunk.drafts is not None:
                for token in range(chunk.drafts.start, chunk.drafts.stop):
                    outputs[token] = self._recurrence.step(inputs[token, None], state[None])[0]
        drafts = [chunk.drafts for chunk in rows.chunks if chunk.drafts is not None]
        rows.drafted.add([stored[its].clone() for its in drafts], self._recurrence.step, cache)
        return self._output(self._recurrence.gated(outputs, inputs).to(x.dtype))

    def _in_order(self, inputs: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Return the outputs of a sequence's tokens; a single one is computed as in a decode, also if drafts follow."""
        return self._recurrence.step(inputs, state[None]) if len(inputs) == 1 else self._recurrence.scan(inputs, state)

    def _state_before(self, chunk: StateChunk, cache: torch.Tensor) -> torch.Tensor:
        return cache.new_zeros(cache.shape[1]) if chunk.source is None else cache[chunk.source].clone()
