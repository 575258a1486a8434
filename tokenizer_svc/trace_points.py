"""Trace points: which calls of a tokenizer are spans of its trace (services/trace.py)."""

from tetrad.services.trace import Point, Points
from tetrad.tokenizer_svc import servicer
from tetrad.tokenizer_svc.detokenize_stream import DetokenizeStream
from tetrad.tokenizer_svc.tokenizer import Tokenizer


def trace_points() -> Points:
    """Return what becomes of a message."""
    return (
        Point(servicer, "apply_to_stream", "answer"),
        Point(DetokenizeStream, "append", "detokenize"),
        Point(Tokenizer, "encode", "encode text"),
    )
