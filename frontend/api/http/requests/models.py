"""The model of an HTTP request: the one that its body names, or the first."""

from starlette.requests import Request

from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.model_directory import ModelDirectory


def models_of(request: Request) -> ModelDirectory:
    """Return the models that are served."""
    models: ModelDirectory = request.app.state.models
    return models


def llm_of(request: Request, name: str | None) -> AsyncLLM:
    """Return the model that a request names; NotFound if there is none of this name."""
    return models_of(request).find(name)
