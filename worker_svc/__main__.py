"""Command line of the worker: `python -m tetrad.worker_svc --listen unix:/run/worker.sock`."""

import gc

gc.disable()  # imports make no garbage, and collections take a seventh of their time; run_service switches them on

import functools
import sys

from tetrad.services.timers.garbage import collect_rarely

collect_rarely()  # before all other imports

from tetrad.services.process import run_service  # noqa: E402
from tetrad.services.settings import load_settings  # noqa: E402
from tetrad.worker_svc.api.trace_points import trace_points  # noqa: E402
from tetrad.worker_svc.config import WorkerSettings  # noqa: E402
from tetrad.worker_svc.service import serve  # noqa: E402


def main() -> None:
    """Read the settings and serve until SIGTERM."""
    settings = load_settings(WorkerSettings, sys.argv[1:], prog="tetrad worker")
    run_service(
        "worker", settings, functools.partial(serve, settings), trace_points=functools.partial(trace_points, settings.device)
    )


if __name__ == "__main__":
    main()
