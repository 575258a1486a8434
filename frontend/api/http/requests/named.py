"""Named: the model, the id and the rank that an HTTP request names in its body or its headers."""

from starlette.requests import Request

from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.model_directory import ModelDirectory
from tetrad.services.errors import InvalidRequest
from tetrad.services.request_context import checked_request_id


def models_of(request: Request) -> ModelDirectory:
    """Return all served models."""
    models: ModelDirectory = request.app.state.models
    return models


def llm_of(request: Request, name: str | None) -> AsyncLLM:
    """Return the model with this name, or the first if it is empty; NotFound for an unknown name.

    A single model is returned for any name: the caller has to resolve it.
    """
    return models_of(request).find(name)


def named_llm(request: Request, name: str | None) -> AsyncLLM:
    """Return the model with this name, or the first if it is empty; NotFound for an unknown name, also of a single model."""
    llm = llm_of(request, name)
    if name not in llm.served_names:  # which are known before the model is started
        llm.model_names.resolve(name)
    return llm


_RANK = "x-data-parallel-rank"


def request_id_of(request: Request, given: str | None) -> str:
    """Return the request's id: the one in its body, or else that of its header X-Request-Id.

    Args:
        request: the HTTP request.
        given: the id in its body.

    Raises:
        InvalidRequest: the body's id is malformed.
    """
    return str(request.state.request_id) if given is None else checked_request_id(given)


def data_parallel_rank_of(request: Request) -> int | None:
    """Return the engine core's rank from vLLM's header X-data-parallel-rank; None without one.

    Raises:
        InvalidRequest: the value is no whole number.
    """
    given = request.headers.get(_RANK)
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal() and len(given) < 10):
        raise InvalidRequest(f"X-data-parallel-rank must be a whole number from 0 on, got {given[:64]!r}.", field=_RANK)
    return int(given)
