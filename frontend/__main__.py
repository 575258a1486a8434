"""`python -m tetrad.frontend`: serve HTTP and the public gRPC API until told to stop."""

import asyncio
import sys

from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.serve import serve
from tetrad.services.process import run_service
from tetrad.services.settings import load_settings


def main() -> None:
    """Read the settings and run."""
    settings = load_settings(FrontendSettings, sys.argv[1:], prog="tetrad frontend")

    async def run(shutdown: asyncio.Event) -> None:
        await serve(settings, shutdown)

    run_service("frontend", settings, run)


if __name__ == "__main__":
    main()
