"""Runner's adapters: keeps the adapter of each slot's request and selects it in the model before a forward pass.

A SlotListener of the request table. A request whose adapter is not installed fails alone, before it gets a slot.
"""

import numpy as np

from tetrad.services.errors import Unavailable
from tetrad.worker_svc.core.lora import ModelLoras
from tetrad.worker_svc.core.plan import Ints, NewRequest
from tetrad.worker_svc.core.request_table import refuse_adapters
from tetrad.worker_svc.core.step_inputs import StepRows


class NoLoras:
    """The adapters of a model without support for them; requests with an adapter are refused."""

    def add(self, slot: int, request: NewRequest) -> None:
        """See SlotListener."""

    def remove(self, slot: int) -> None:
        """See SlotListener."""

    check = staticmethod(refuse_adapters)

    def select_tokens(self, inputs: StepRows) -> None:
        """Do nothing."""

    def select_rows(self, slots: Ints) -> None:
        """Do nothing."""


class SlotLoras:
    """The adapter ids of all slots.

    Args:
        loras: the model's adapters.
        max_num_seqs: number of slots.
    """

    def __init__(self, loras: ModelLoras, max_num_seqs: int) -> None:
        self._loras = loras
        self._ids: Ints = np.zeros(max_num_seqs, np.int64)

    def add(self, slot: int, request: NewRequest) -> None:
        """Store the adapter id of the slot's request."""
        self._ids[slot] = request.lora_id

    def remove(self, slot: int) -> None:
        """Set the slot's adapter id to 0."""
        self._ids[slot] = 0

    def check(self, request: NewRequest) -> None:
        """Raise Unavailable if the request's adapter is not installed."""
        if request.lora_id and not self._loras.has(request.lora_id):
            raise Unavailable(f"Adapter {request.lora_id} is not loaded on this worker.", reason="LORA_NOT_LOADED")

    def select_tokens(self, inputs: StepRows) -> None:
        """Select the adapter of each token of a step in the model."""
        self._loras.select(np.repeat(self._ids[inputs.slots], inputs.num_scheduled))

    def select_rows(self, slots: Ints) -> None:
        """Select the adapters of the rows whose logits the model computes next."""
        self._loras.select(self._ids[slots])
