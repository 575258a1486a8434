"""Command line of the worker: `python -m tetrad.worker_svc --listen unix:/run/worker.sock`."""

import functools
import sys

from tetrad.services.timers.garbage import collect_rarely

collect_rarely()  # before all other imports

from tetrad.services.process import run_service
from tetrad.services.settings import load_settings
from tetrad.worker_svc.api.trace_points import trace_points
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.service import serve


def main() -> None:
    """Read the settings and serve until SIGTERM."""
    settings = load_settings(WorkerSettings, sys.argv[1:], prog="tetrad worker")
    run_service(
        "worker", settings, functools.partial(serve, settings), trace_points=functools.partial(trace_points, settings.device)
    )


if __name__ == "__main__":
    main()
