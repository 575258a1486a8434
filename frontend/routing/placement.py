"""Placement: the engine core chosen for a request, and how much of its prompt this one has cached."""

from dataclasses import dataclass

from tetrad.frontend.engine.client import EngineClient


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of a request.

    Attributes:
        engine: the engine core that runs it.
        num_held_tokens: number of the prompt's first tokens that its KV events report; 0: none or unknown.
    """

    engine: EngineClient
    num_held_tokens: int = 0
