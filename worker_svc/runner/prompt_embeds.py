"""Prompt embeddings: vectors that replace the token ids at positions of a prompt, by slot.

A SlotListener of the request table: it keeps the vectors of each request until the request ends, since a preempted prompt is
computed again, and gathers the vectors of a step's tokens.
"""

from collections.abc import Mapping

import numpy as np

from tetrad.services.errors import InvalidRequest
from tetrad.worker_svc.core.plan import Floats, GivenRows, NewRequest, PromptEmbeds
from tetrad.worker_svc.core.step_inputs import StepRows


class SlotEmbeds:
    """The prompt embeddings of each slot.

    Args:
        size: number of values in an embedding; 0: the model takes no embeddings, for example because it scales its own.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._of_slot: dict[int, Mapping[int, int]] = {}
        self._values: dict[int, Floats] = {}

    def add(self, slot: int, request: NewRequest) -> None:
        """Store a request's embeddings, and the map from position to row."""
        if request.prompt_embeds is not None:
            positions = request.prompt_embeds.positions.tolist()
            self._of_slot[slot] = dict(zip(positions, range(len(positions)), strict=True))
            self._values[slot] = request.prompt_embeds.values

    def remove(self, slot: int) -> None:
        """Delete the slot's embeddings."""
        self._of_slot.pop(slot, None)
        self._values.pop(slot, None)

    def check(self, request: NewRequest) -> None:
        """Raise InvalidRequest, with both sizes, if the model cannot take the request's embeddings."""
        embeds = request.prompt_embeds
        if embeds is None:
            return
        if not self._size:
            raise InvalidRequest(
                "prompt_embeds are not supported for this model: it scales its embeddings, or does not say.",
                field="prompt_embeds",
            )
        _check_shape(embeds, request.num_prompt_tokens, self._size)

    def gather(self, inputs: StepRows) -> GivenRows | None:
        """Return the rows of a step's tokens that are given as embeddings, and these embeddings; None if there are none."""
        if not self._of_slot:
            return None
        rows, values = [], []
        for row, slot in enumerate(inputs.slots.tolist()):
            its = self._of_slot.get(slot)
            if its is None:
                continue
            start, first = int(inputs.num_computed[row]), int(inputs.first_token[row])
            for offset in range(int(inputs.num_scheduled[row])):
                index = its.get(start + offset)
                if index is not None:
                    rows.append(first + offset)
                    values.append(self._values[slot][index])
        return GivenRows(np.array(rows, np.int64), np.stack(values)) if rows else None


def _check_shape(embeds: PromptEmbeds, num_prompt_tokens: int, hidden_size: int) -> None:
    num_rows, size = embeds.values.shape
    if size != hidden_size:
        raise InvalidRequest(f"prompt_embeds have {size} values a row; the model's hidden_size is {hidden_size}.")
    if len(embeds.positions) != num_rows or int(embeds.positions.max(initial=0)) >= num_prompt_tokens:
        text = f"prompt_embeds have {num_rows} rows for {len(embeds.positions)} positions of a prompt of {num_prompt_tokens}."
        raise InvalidRequest(text, field="prompt_embeds")
