"""SamplingOptions: the common flags of `tetrad chat` and `tetrad complete`."""

import argparse
import contextlib
import math
from pathlib import Path
from typing import Any

from tetrad.cli.http_client import DEFAULT_URL

_FIELDS = ("max_tokens", "temperature", "top_p", "seed")


def add_server_address(parser: argparse.ArgumentParser) -> None:
    """Add the options for the server's URL, its certificate and an API key."""
    parser.add_argument("--url", default=DEFAULT_URL, help="URL of the server.")
    add_server_credentials(parser)


def add_server_credentials(parser: argparse.ArgumentParser) -> None:
    """Add the options for a server's certificate and an API key."""
    text = "Certificate authorities (PEM file) to trust for an https URL. Unset: the system's."
    parser.add_argument("--ca-file", type=Path, default=None, metavar="PATH", help=text)
    parser.add_argument("--api-key", default=None, metavar="KEY", help="API key for the server.")


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the server and for sampling."""
    add_server_address(parser)
    server = "Unset: the server's default."
    parser.add_argument("--model", default=None, metavar="NAME", help="Name of the model. Unset: the server's first model.")
    parser.add_argument("--max-tokens", type=int, default=1024, metavar="N", help="Maximum number of tokens to generate.")
    text = f"Sampling temperature; 0 always takes the most likely token. {server}"
    parser.add_argument("--temperature", type=_number, default=None, metavar="X", help=text)
    text = f"Sample from the most likely tokens whose probabilities sum to this value, 0 to 1. {server}"
    parser.add_argument("--top-p", type=_number, default=None, metavar="X", help=text)
    text = "Seed of the random numbers; the same seed gives the same answer. Unset: a different answer each time."
    parser.add_argument("--seed", type=int, default=None, metavar="N", help=text)


def sampling_fields(options: argparse.Namespace) -> dict[str, Any]:
    """Return the sampling fields of a request that the options set."""
    return {name: getattr(options, name) for name in _FIELDS if getattr(options, name) is not None}


def _number(text: str) -> float:
    with contextlib.suppress(ValueError):
        if math.isfinite(value := float(text)):
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is no finite number")
