"""Dispatch: sends the sequences of a request to engine cores. Owned by the backends, called by the intake.

DirectDispatch sends them to the chosen engine core. PrefillFirst (prefill_first.py) has a producer compute the prompt before.
"""

from collections.abc import Sequence
from typing import Protocol

from tetrad.frontend.engine.client_sequence import ActiveSequence
from tetrad.frontend.routing.placement import Placement


class Dispatch(Protocol):
    """A way to send requests."""

    def send(self, placement: Placement, active: Sequence[ActiveSequence]) -> None:
        """Send the sequences of one request; Unavailable if their engine core is given up."""


class DirectDispatch:
    """Sends each request to the engine core that was chosen for it."""

    def send(self, placement: Placement, active: Sequence[ActiveSequence]) -> None:
        """Send the sequences of one request; see Dispatch."""
        for each in active:
            placement.engine.add(each)
