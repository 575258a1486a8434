"""Collective methods: the methods that CollectiveRpc may call, by name.

Arguments and results are JSON; nothing that was received is executed as code.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from tetrad.services.errors import InvalidRequest, NotFound

Method = Callable[..., Any]
"""A collective method; its arguments and its result can be represented in JSON."""


class CollectiveMethods:
    """A registry of collective methods, filled at start."""

    def __init__(self, methods: Mapping[str, Method]) -> None:
        self._methods = dict(methods)

    def call(self, method: str, args_json: str, kwargs_json: str) -> str:
        """Call a method and return its result as JSON.

        Raises NotFound if there is no such method, InvalidRequest if the arguments do not fit.
        """
        if method not in self._methods:
            known = ", ".join(sorted(self._methods))
            raise NotFound(f"The worker has no collective method {method!r}; it has: {known}.")
        args, kwargs = _parse(args_json, list, "args_json"), _parse(kwargs_json, dict, "kwargs_json")
        try:
            return json.dumps(self._methods[method](*args, **kwargs))
        except TypeError as error:
            raise InvalidRequest(f"Collective method {method}: {error}", field="args_json") from error


def _parse(text: str, kind: type, name: str) -> Any:
    try:
        value = json.loads(text) if text else kind()
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{name} is not JSON: {error}", field=name) from error
    if not isinstance(value, kind):
        raise InvalidRequest(f"{name} must be a JSON {'array' if kind is list else 'object'}.", field=name)
    return value
