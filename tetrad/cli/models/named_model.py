"""Named model: describes a model by its name; downloads at most config.json."""

from tetrad.cli.models.description import ModelDescription, describe_files
from tetrad.services.errors import ModelError
from tetrad.services.hub.cache import find_cached
from tetrad.services.hub.download import look_up
from tetrad.services.hub.model_files import BUILTIN_MODELS, existing_path, resolve_model
from tetrad.services.hub.name import HubName, parse_hub_name


def describe_model(name: str, revision: str | None) -> tuple[ModelDescription, str]:
    """Return the description of a model and the path of its files; an empty path: they are not downloaded."""
    hub_name = None if existing_path(name) is not None or name in BUILTIN_MODELS else parse_hub_name(name)
    if hub_name is None:
        path = resolve_model(name)
        return describe_files(path), str(path)
    cached = find_cached(hub_name, revision, with_weights=True)
    return (_describe_remote(hub_name, revision), "") if cached is None else (describe_files(cached), str(cached))


def _describe_remote(name: HubName, revision: str | None) -> ModelDescription:
    found = look_up(name, revision)
    if found.config is None:
        raise ModelError(f"The facts of {name} are in its .gguf file, which is not downloaded: `tetrad pull {name}` first.")
    return ModelDescription(found.config, found.num_parameters, found.weights_bytes)
