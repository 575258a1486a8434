"""The common options of `tetrad pull`, `tetrad list` and `tetrad show`."""

import argparse


def add_revision(parser: argparse.ArgumentParser) -> None:
    """Add the option --revision."""
    text = "Branch, tag or commit of a Hugging Face id. Default: the main branch."
    parser.add_argument("--revision", metavar="REVISION", help=text)


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the option --device."""
    text = "Device that is to run the model. auto: an NVIDIA GPU if this machine has one, else the CPU."
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help=text)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option --json."""
    parser.add_argument("--json", action="store_const", const=True, default=None, help="Print JSON, with sizes in bytes.")
