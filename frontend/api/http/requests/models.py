"""The model of an HTTP request: finds the model that its body names, or the first one."""

from starlette.requests import Request

from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.model_directory import ModelDirectory


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
