"""Functions: sends the name of a program's function to the workers of its stack (LLM.apply_model, collective_rpc).

A worker imports the named function, which is the program's code, only if `allow_functions` is set. Functions for services that
were started elsewhere are refused.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tetrad.frontend.engine.admin_client import EngineAdminClient
from tetrad.services.errors import InvalidRequest, UnsupportedArgument

RELOAD_WEIGHTS = "reload_weights"
"""vLLM's method of workers, which an engine core executes: it holds steps meanwhile."""


async def call_workers(
    admin: EngineAdminClient,
    method: str | Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    timeout_s: float | None,
    are_allowed: bool,
    on: str = "call_function",
) -> list[Any]:
    """Call a registered method, or a function, on every worker; return the results.

    Args:
        admin: client of the engine cores' administration.
        method: name of a registered method, or a function.
        args, kwargs: arguments of JSON types; a function gets them after its first argument.
        timeout_s: maximum wait in seconds; None: no limit.
        are_allowed: whether this program started the services and they may run its functions.
        on: first argument of a function: "call_function": the worker; "apply_to_model": its loaded model.
    """
    if method == RELOAD_WEIGHTS:
        return await _reload_weights(admin, *args, **kwargs)
    if isinstance(method, str):
        return await admin.collective_rpc(method, args, kwargs, timeout_s=timeout_s)
    if not are_allowed:
        raise UnsupportedArgument(
            "a function runs only in workers that the program started itself, with LLM(allow_functions=True); else give the "
            "name of a registered method.",
            field="method",
        )
    return await admin.collective_rpc(on, [name_of(method), list(args), dict(kwargs)], timeout_s=timeout_s)


async def _reload_weights(admin: EngineAdminClient, weights_iterator: None = None, weights_path: str = "") -> list[Any]:
    """Do what vLLM's method of workers does: read weights from a path, or again from where the present ones are."""
    if weights_iterator is not None:
        raise UnsupportedArgument("weights_iterator: new weights are read from weights_path.", field="weights_iterator")
    await admin.weights.reload(weights_path)
    return [None for _ in await admin.collective_rpc("get_pid")]


def name_of(function: Callable[..., Any]) -> str:
    """Return "module:function"; InvalidRequest for a function that a worker cannot import."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name or module == "__main__" or "<" in name:
        shown = name or type(function).__name__
        raise InvalidRequest(
            f"Function {shown[:80]} cannot be imported in a worker: it must stand at the top of a module other than __main__.",
            field="method",
        )
    return f"{module}:{name}"
