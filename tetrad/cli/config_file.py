"""Config file: reads the options of a command from a YAML file, and prints them in this form.

Keys are the flags' names without the leading dashes (`max-num-seqs` or `max_num_seqs`). Values are checked like those of flags.
A flag overrides the file; the file overrides TETRAD_* variables. Knows parsers; of the options it knows only MODEL.
"""

import argparse
import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tetrad.services.errors import InvalidRequest

_OWN = ("help", "config", "print_config")
_MODEL = "model"
_NAMED_MODEL = "named_model"


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Add the options `--config` and `--print-config`."""
    text = "YAML file with options, by the names of their flags without dashes in front. Flags override it."
    parser.add_argument("--config", type=Path, default=None, metavar="FILE", help=text)
    text = "Print every option with its value as YAML, a file for --config, and exit."
    parser.add_argument("--print-config", action="store_true", help=text)


def parse_with_config(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options from the flags and the file; an invalid flag exits the process, as usual for command lines.

    `given` in the result has the names of the options that the flags or the file contain.

    Raises:
        InvalidRequest: the file cannot be read, or has an invalid key or value.
    """
    options, flags = parser.parse_args(arguments), _flags_in(parser, arguments)
    if options.config is not None:
        in_file = _read(options.config, _options(parser))
        model = in_file.pop(_MODEL, None)
        parser.set_defaults(**_checked(parser, options.config, in_file))
        options = parser.parse_args(arguments)
        flags |= in_file.keys()
        if isinstance(model, bool) or not isinstance(model, str | int | float | None):
            raise InvalidRequest(f"--config {options.config}: model: takes no such value: {model!r}.", field="config")
        if options.model is None and getattr(options, _NAMED_MODEL, None) is None and model is not None:
            options.model = str(model)
    options.given = flags
    return options


def _flags_in(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> frozenset[str]:
    """Return the names of the options that a command line contains."""
    absent: list[object] = []  # a list, because options that may be repeated extend a copy of the value before
    names = [action.dest for action in parser._actions]  # noqa: SLF001 - argparse has no public list of them
    found = parser.parse_args(arguments, argparse.Namespace(**dict.fromkeys(names, absent)))
    return frozenset(name for name, value in vars(found).items() if value is not absent)


def config_text(parser: argparse.ArgumentParser, options: argparse.Namespace) -> str:
    """Return the options as YAML, each with its description; unset options are null."""
    return "".join(
        f"{_comment(action)}{yaml.safe_dump({name: _plain(name, options)}, sort_keys=False, allow_unicode=True)}"
        for name, action in _options(parser).items()
    )


def _options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Return the options by name, such as `max_num_seqs`."""
    actions = {action.dest: action for action in parser._actions if action.dest not in (*_OWN, _NAMED_MODEL)}  # noqa: SLF001 - argparse has no public list of them
    return {_MODEL: actions.pop(_MODEL), **actions} if _MODEL in actions else actions


def _read(path: Path, known: Mapping[str, argparse.Action]) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"--config {path} cannot be read: {error}.", field="config") from error
    except yaml.YAMLError as error:
        raise InvalidRequest(f"--config {path} is not YAML: {' '.join(str(error).split())}.", field="config") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InvalidRequest(f"--config {path} must hold options, one `name: value` in each line.", field="config")
    found = {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {close[0]}?" if close else " --print-config lists the options."
            raise InvalidRequest(f"--config {path}: there is no option {key!r}.{hint}", field="config")
        if value is not None:
            found[name] = value
    return found


def _checked(parser: argparse.ArgumentParser, path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values in the form that flags give."""
    options = _options(parser)
    checked = {}
    parser.exit_on_error = False
    try:
        for name, value in given.items():
            checked[name] = getattr(parser.parse_args(list(_flags(options[name], value))), name)
    except TypeError as error:  # a date, for example, inside of an object
        raise InvalidRequest(f"--config {path}: {name}: takes no such value: {value!r}.", field="config") from error
    except argparse.ArgumentError as error:
        raise InvalidRequest(f"--config {path}: {name}: {error.message}.", field="config") from error
    finally:
        parser.exit_on_error = True
    return checked


def _flags(action: argparse.Action, value: Any) -> Iterator[str]:
    flag = action.option_strings[0]
    if isinstance(value, bool) and action.choices and {"on", "off"} <= {*action.choices}:
        value = "on" if value else "off"  # YAML reads these words without quotes as true and false
    if isinstance(action, argparse.BooleanOptionalAction) or (action.nargs == "?" and isinstance(value, bool)):
        if not isinstance(value, bool):
            raise argparse.ArgumentError(None, f"must be true or false, got {value!r}")
        yield flag if value else f"--no-{flag.removeprefix('--')}"
    elif isinstance(value, list):
        if action.nargs in (None, "?") and isinstance(action, argparse._StoreAction):  # noqa: SLF001 - argparse has no public name
            raise argparse.ArgumentError(None, f"takes one value, got {value!r}")
        if action.nargs == "+":
            yield from (flag, *map(str, value))
        else:
            yield from (f"{flag}={json.dumps(each) if isinstance(each, dict) else each}" for each in value)
    elif isinstance(value, bool) or not isinstance(value, str | int | float | dict):
        raise argparse.ArgumentError(None, f"takes no such value: {value!r}")
    else:
        yield f"{flag}={json.dumps(value) if isinstance(value, dict) else value}"


def _plain(name: str, options: argparse.Namespace) -> Any:
    value = getattr(options, name)
    if name == _MODEL and value is None:
        value = getattr(options, _NAMED_MODEL, None)
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value


def _comment(action: argparse.Action) -> str:
    lines = (action.help or "").replace("%%", "%").replace("%(default)s", str(action.default)).splitlines()
    choices = [f"One of {', '.join(map(str, action.choices))}."] if action.choices else []
    return "".join(f"# {line}\n" for line in (*lines, *choices))
