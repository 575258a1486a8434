"""Trace points of a worker that runs models; those of the other services are in the end-to-end test of the trace."""

from tetrad.worker_svc.api.trace_points import trace_points


def test_every_call_that_is_traced_exists():
    missing = [point for point in trace_points("cpu") if not callable(getattr(point.owner, point.attribute, None))]

    assert not missing
