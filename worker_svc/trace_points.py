"""Trace points: which calls of a worker are spans of its trace (services/trace.py)."""

from tetrad.services.trace import Point, Points
from tetrad.worker_svc import servicer, worker
from tetrad.worker_svc.worker import Worker


def trace_points(device: str) -> Points:
    """Return the parts of a step on a device."""
    of_any = (
        Point(servicer, "_read", "decode plan"),
        Point(worker, "check_plan", "check plan"),
        Point(Worker, "execute", "execute"),
        Point(servicer, "_write", "encode result"),
    )
    return of_any if device == "sim" else (*of_any, *_of_models())


def _of_models() -> Points:
    # The simulated device never imports torch.
    from tetrad.worker_svc import model_runner
    from tetrad.worker_svc.model_runner import ModelRunner
    from tetrad.worker_svc.request_table import RequestTable

    return (
        Point(RequestTable, "apply", "apply plan"),
        Point(model_runner, "build_step_inputs", "inputs"),
        Point(ModelRunner, "_forward", "forward"),
        Point(ModelRunner, "_sample", "sample"),
    )
