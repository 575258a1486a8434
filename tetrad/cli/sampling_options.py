"""SamplingOptions: the flags that `tetrad chat` and `tetrad complete` share."""

import argparse
from pathlib import Path
from typing import Any

from tetrad.cli.http_client import DEFAULT_URL

_FIELDS = ("max_tokens", "temperature", "top_p", "seed")


def add_server_address(parser: argparse.ArgumentParser) -> None:
    """Add where the server is, and how its certificate is known."""
    parser.add_argument("--url", default=DEFAULT_URL, help="URL of the server.")
    text = "Authorities to trust at an https URL, PEM. Unset: the system's."
    parser.add_argument("--ca-file", type=Path, default=None, metavar="PATH", help=text)
    parser.add_argument("--api-key", default=None, metavar="KEY", help="Key of the server. Unset: none.")


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Add where the server is and how to sample."""
    add_server_address(parser)
    parser.add_argument("--model", default=None, help="Name of the model. Unset: the server's first.")
    parser.add_argument("--max-tokens", type=int, default=1024, help="Most tokens to generate.")
    parser.add_argument("--temperature", type=float, default=None, help="0 is greedy. Unset: the server decides.")
    parser.add_argument("--top-p", type=float, default=None, help="Share of probability to keep. Unset: the server decides.")
    parser.add_argument("--seed", type=int, default=None, help="Makes sampling repeatable. Unset: it is not.")


def sampling_fields(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a request that were given."""
    return {name: getattr(options, name) for name in _FIELDS if getattr(options, name) is not None}
