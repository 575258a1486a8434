"""Trace points: the calls in a tokenizer that become spans of its trace (services/observability/trace.py)."""

from tetrad.services.observability.trace import Point, Points
from tetrad.tokenizer_svc.api import servicer
from tetrad.tokenizer_svc.tokenizer.detokenize_stream import DetokenizeStream
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer


def trace_points() -> Points:
    """Return the trace points of a message."""
    return (
        Point(servicer, "apply_to_stream", "answer"),
        Point(DetokenizeStream, "append", "detokenize"),
        Point(Tokenizer, "encode", "encode text"),
    )
