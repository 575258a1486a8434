"""JSON text: encodes values as JSON that every client can read: no NaN, and lone surrogates only as escapes."""

import json
from typing import Any


def json_text(value: Any) -> str:
    """Return the JSON text of a value.

    Raises:
        ValueError: the value has a number that JSON cannot represent.
        RecursionError: the value is nested too deeply.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False)
    return text
