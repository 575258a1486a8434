"""The model of an HTTP request: finds the model that its body names, or the first one."""

from starlette.requests import Request

from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.model_directory import ModelDirectory


def models_of(request: Request) -> ModelDirectory:
    """Return all served models."""
    models: ModelDirectory = request.app.state.models
    return models


def llm_of(request: Request, name: str | None) -> AsyncLLM:
    """Return the model with this name, or the first if it is empty; NotFound for an unknown name."""
    return models_of(request).find(name)
