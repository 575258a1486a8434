"""Placement: the engine core chosen for a request, and how much of its prompt this one has cached.

A Dispatch sends the request's sequences there: the engine pool at once, PrefillFirst (prefill_first.py) after a producer has
computed the prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tetrad.frontend.engine.client import EngineClient
from tetrad.frontend.engine.client_sequence import ActiveSequence


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of a request.

    Attributes:
        engine: the engine core that runs it.
        num_held_tokens: number of the prompt's first tokens that its KV events report; 0: none or unknown.
    """

    engine: EngineClient
    num_held_tokens: int = 0


class Dispatch(Protocol):
    """A way to send requests. Owned by the backends, called by the intake."""

    def send(self, placement: Placement, active: Sequence[ActiveSequence]) -> None:
        """Send the sequences of one request; Unavailable if their engine core is given up."""
