"""Trace points: lists the calls of a frontend that its trace records as spans (services/observability/trace.py)."""

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from tetrad.frontend.api.http.chat import router
from tetrad.frontend.api.http.completions import answer as completions
from tetrad.frontend.engine import session_client as engine_session_client
from tetrad.frontend.engine.session_client import EngineSession
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.output_processor import OutputProcessor
from tetrad.frontend.tokenizer import detokenizer_client
from tetrad.frontend.tokenizer.detokenizer_client import DetokenizerClient
from tetrad.services.observability.trace import Point, Points


def trace_points() -> Points:
    """Return the calls that process an incoming request, and those that process the tokens of a step."""
    return (
        Point(AsyncLLM, "add_request", "add request"),
        Point(EngineSession, "receive", "receive"),
        Point(engine_session_client, "decode_step", "decode outputs"),
        Point(OutputProcessor, "process", "process step"),
        Point(DetokenizerClient, "append", "detokenize hop"),
        Point(DetokenizerClient, "_message", "encode ids"),
        Point(detokenizer_client, "decode_deltas", "decode texts"),
        Point(completions, "event", "encode chunk"),
        Point(router, "event", "encode chunk"),
        Point(RequestResponseCycle, "send", "write chunk"),
    )
