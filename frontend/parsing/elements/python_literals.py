"""Python literals: converts values in Python syntax to JSON. Values are parsed, never evaluated."""

import ast
import warnings
from typing import Any

from tetrad.frontend.parsing.elements.json_text import json_text

# Constants of JSON, which models also write in Python values.
_JSON_NAMES = {"true": True, "false": False, "null": None}


def literal_json(text: str) -> str | None:
    """Return the JSON of a literal; None for any other text, and for values that JSON cannot represent."""
    try:
        return json_text(_value(_parsed(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def keywords_json(parentheses: str) -> str | None:
    """Return the JSON object of "(key=literal, ...)"; None for any other text, and for values that JSON cannot represent."""
    try:
        call = _parsed(f"f{parentheses}")
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            return None
        values = {each.arg: _value(each.value) for each in call.keywords}
        if None in values or len(values) < len(call.keywords):  # ** arguments, or a repeated argument
            return None
        return json_text(values)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _parsed(text: str) -> ast.expr:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of invalid escapes
        return ast.parse(text, mode="eval").body


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value) if value is None or isinstance(value, str | int | float):
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(value)) if isinstance(value, int | float):
            return -value
        case ast.List(elements) | ast.Tuple(elements) | ast.Set(elements):
            return [_value(each) for each in elements]
        case ast.Dict(keys, values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
        case ast.Name(name) if name in _JSON_NAMES:
            return _JSON_NAMES[name]
    raise ValueError(f"JSON has no {type(node).__name__}")


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int) and not isinstance(node.value, bool):
        return str(node.value)
    raise ValueError("JSON's keys are strings")
