"""Functions: runs functions of the program that started the worker, if the option allow_functions is set.

A function is given by its name, "module:function", and imported here; arguments and results are JSON, so nothing is unpickled.
It runs on the compute thread, between steps, with the worker or its loaded model as its first argument. Without the option,
every function is refused.
"""

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tetrad.services.errors import FailedPrecondition, InvalidRequest
from tetrad.worker_svc.worker.worker import Worker

CALL_FUNCTION, APPLY_TO_MODEL = "call_function", "apply_to_model"
"""Names of the collective methods that run functions."""


def function_methods(worker: Worker, *, are_allowed: bool) -> Mapping[str, Callable[..., Any]]:
    """Return the collective methods that take a function's name, its further arguments and its keyword arguments.

    Args:
        worker: the first argument of functions.
        are_allowed: whether functions run; otherwise they are refused.
    """

    def call(name: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        return _run(name, worker, args, kwargs or {})

    def apply(name: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        return _run(name, worker.loaded_model(), args, kwargs or {})

    def refuse(*_: Any) -> Any:
        raise FailedPrecondition("The worker runs no functions of programs; start with LLM(allow_functions=True).")

    return {CALL_FUNCTION: call, APPLY_TO_MODEL: apply} if are_allowed else {CALL_FUNCTION: refuse, APPLY_TO_MODEL: refuse}


def _run(name: str, first: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    function = _find(name)
    try:
        result = function(first, *args, **kwargs)
    except Exception as error:
        raise InvalidRequest(f"Function {name} raised {type(error).__name__}: {error}", field="method") from error
    try:
        json.dumps(result)
    except (TypeError, ValueError) as error:
        text = f"Function {name} returned {type(result).__name__}, which JSON has no form for."
        raise InvalidRequest(text, field="method") from error
    return result


def _find(name: str) -> Callable[..., Any]:
    module_name, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:
        text = f"Function {name} cannot be imported in the worker: {type(error).__name__}: {error}"
        raise InvalidRequest(text, field="method") from error
    if not callable(found):
        raise InvalidRequest(f"{name} is a {type(found).__name__}, no function.", field="method")
    return found  # type: ignore[no-any-return] # what a module has under a name
