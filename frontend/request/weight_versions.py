"""Weight versions: which weights have computed which tokens of an output."""

from dataclasses import dataclass

UNNAMED = "default"
"""The version of weights without a name: those that a model was started with."""


@dataclass(frozen=True, slots=True)
class WeightVersionSpan:
    """Consecutive tokens of an output that weights of one version have computed.

    Attributes:
        version: name of the weights, as an operator gave it; "default" before the first update.
        start, end: indices among the output's tokens; `end` is exclusive.
    """

    version: str
    start: int
    end: int


Spans = tuple[WeightVersionSpan, ...]


def with_tokens(spans: Spans, version: str, start: int, end: int) -> Spans:
    """Return spans with further tokens.

    Args:
        spans: those of earlier tokens; empty: they have no name.
        version: name of the weights; empty: they have none.
        start, end: indices of the tokens.
    """
    name = version or UNNAMED
    if not spans and start:
        spans = (WeightVersionSpan(UNNAMED, 0, start),)
    if spans and spans[-1].version == name:
        return (*spans[:-1], WeightVersionSpan(name, spans[-1].start, end))
    return (*spans, WeightVersionSpan(name, start, end))
