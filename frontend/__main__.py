"""`python -m tetrad.frontend`: serves HTTP and the public gRPC API until it is stopped."""

import asyncio
import sys
from collections.abc import Sequence
from functools import partial
from typing import NoReturn

from tetrad.services.timers.garbage import collect_rarely

collect_rarely()  # before all other imports

from tetrad.frontend.api.http.trace_points import trace_points
from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.net.garbage import settle_garbage_collection
from tetrad.frontend.service import serve
from tetrad.services.process import run_service
from tetrad.services.settings import load_settings


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the service with the flags `argv` (by default those of the process) and exit."""
    settings = load_settings(FrontendSettings, sys.argv[1:] if argv is None else argv, prog="tetrad frontend")
    retire = asyncio.Event()
    serving = partial(serve, settings, retire=retire, on_ready=lambda *_: settle_garbage_collection())
    run_service("frontend", settings, serving, on_retire=retire.set, trace_points=trace_points)


if __name__ == "__main__":
    main()
