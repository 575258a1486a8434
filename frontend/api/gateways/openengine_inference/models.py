"""Models: finds the model that a message of OpenEngine's API names. Adapters are named in a separate field."""

from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.model_directory import ModelDirectory
from tetrad.services.errors import NotFound


def model_of(models: ModelDirectory, name: str) -> AsyncLLM:
    """Return the named model, or the first one for an empty name; raise NotFound if there is no such model."""
    found = models.find(name)
    if name and name not in found.model_names.names:
        raise NotFound(f"The model `{name}` does not exist.", field="model", reason="MODEL_NOT_FOUND")
    return found
