"""Command line of the engine core: `python -m tetrad.engine_core_svc --listen 127.0.0.1:50052`."""

import sys
from collections.abc import Sequence
from functools import partial
from typing import NoReturn

from tetrad.services.timers.garbage import collect_rarely

collect_rarely()  # before all other imports

from tetrad.engine_core_svc.api.trace_points import trace_points
from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.service import serve
from tetrad.services.process import run_service
from tetrad.services.settings import load_settings


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the service with these flags (default: those of the process) and exit."""
    settings = load_settings(EngineCoreSettings, sys.argv[1:] if argv is None else argv, prog="tetrad engine-core")
    run_service("engine-core", settings, partial(serve, settings), trace_points=trace_points)


if __name__ == "__main__":
    main()
