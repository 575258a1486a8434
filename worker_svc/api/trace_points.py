"""Trace points: the calls of a worker that become spans of its trace (services/observability/trace.py)."""

from tetrad.services.observability.trace import Point, Points
from tetrad.worker_svc.api import servicer
from tetrad.worker_svc.worker import worker
from tetrad.worker_svc.worker.worker import Worker


def trace_points(device: str) -> Points:
    """Return the trace points of a step on a device."""
    of_any = (
        Point(servicer, "_read", "decode plan"),
        Point(worker, "check_plan", "check plan"),
        Point(Worker, "execute", "execute"),
        Point(servicer, "_write", "encode result"),
    )
    return of_any if device == "sim" else (*of_any, *_of_models())


def _of_models() -> Points:
    # The simulated device never imports torch.
    from tetrad.worker_svc.core.request_table import RequestTable
    from tetrad.worker_svc.runner import model_runner
    from tetrad.worker_svc.runner.model_runner import ModelRunner

    return (
        Point(RequestTable, "apply", "apply plan"),
        Point(model_runner, "build_step_inputs", "inputs"),
        Point(ModelRunner, "_forward", "forward"),
        Point(ModelRunner, "_sample", "sample"),
    )
