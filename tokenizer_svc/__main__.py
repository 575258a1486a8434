"""Command line of the tokenizer: `python -m tetrad.tokenizer_svc --listen 127.0.0.1:50051`."""

import sys
from collections.abc import Sequence
from functools import partial
from typing import NoReturn

from tetrad.services.timers.garbage import collect_rarely

collect_rarely()  # before all other imports

from tetrad.services.process import run_service
from tetrad.services.settings import load_settings
from tetrad.tokenizer_svc.api.trace_points import trace_points
from tetrad.tokenizer_svc.config import TokenizerSettings
from tetrad.tokenizer_svc.service import serve


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the service with these flags (default: those of the process) and exit."""
    settings = load_settings(TokenizerSettings, sys.argv[1:] if argv is None else argv, prog="tetrad tokenizer")
    run_service("tokenizer", settings, partial(serve, settings), trace_points=trace_points)


if __name__ == "__main__":
    main()
