"""Trace points: the calls in an engine core that become spans of its trace (services/observability/trace.py)."""

import grpc

from tetrad.engine_core_svc.api import servicer
from tetrad.engine_core_svc.engine.arrivals import Arrivals
from tetrad.engine_core_svc.engine.engine import Engine
from tetrad.engine_core_svc.scheduler.scheduler import Scheduler
from tetrad.engine_core_svc.sessions.sessions import Sessions
from tetrad.engine_core_svc.worker import executor
from tetrad.engine_core_svc.worker.in_flight import InFlight
from tetrad.services.observability.trace import Interval, Point, Points


def trace_points() -> Points:
    """Return the trace points of a step."""
    return (
        Point(Engine, "step", "step"),
        Point(Arrivals, "add", "add request"),
        Point(Scheduler, "schedule", "schedule"),
        Point(executor, "encode_plan", "encode plan"),
        Point(grpc.aio.StreamStreamCall, "write", "send plan"),
        Interval((InFlight, "add"), (InFlight, "take"), "wait for worker"),
        Point(executor, "decode_result", "decode result"),
        Point(Scheduler, "update", "update"),
        Point(Sessions, "publish", "outputs"),
        Point(servicer, "encode_message", "encode outputs"),
    )
