"""Command line of programs made for vLLM: adds a flag for each field of EngineArgs; has vLLM's parser class.

`tetrad serve` has its own flags (cli/options.py), which are the same for all arguments that have an effect.
"""

import argparse
import json
from collections.abc import Sequence
from typing import Any, TypeVar

from tetrad.services.verdicts import verdicts_of

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)


class FlexibleArgumentParser(argparse.ArgumentParser):
    """A parser that accepts underscores instead of dashes in the names of flags, like vLLM's class of the same name."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:  # type: ignore[override]
        """Parse arguments, by default those of `sys.argv`."""
        import sys

        given = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args([_dashed(each) for each in given], namespace)


def add_flags(parser: Parser) -> Parser:
    """Add a flag for every field of EngineArgs to a parser, and return the parser."""
    from tetrad.cli.options import PROGRAMS_ALONE, add_engine_options
    from tetrad.library.engine_args import EngineArgs

    add_engine_options(parser, model_flag=True)
    for name in PROGRAMS_ALONE:
        default = EngineArgs.__dataclass_fields__[name].default
        kind = _kind(default) if default is not None else {"type": int}
        parser.add_argument(f"--{name.replace('_', '-')}", default=default, help=argparse.SUPPRESS, **kind)
    group = parser.add_argument_group("arguments of vLLM's that have no effect here, or one value")
    for name, verdict in verdicts_of(EngineArgs).items():
        group.add_argument(f"--{name.replace('_', '-')}", default=verdict.default, help=verdict.why, **_kind(verdict.default))
    return parser


def _kind(default: object) -> dict[str, Any]:
    if isinstance(default, bool):
        return {"action": argparse.BooleanOptionalAction}
    if isinstance(default, int | float):
        return {"type": type(default)}
    return {"type": str if isinstance(default, str) else _json_or_text}


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _dashed(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value
