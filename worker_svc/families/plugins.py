"""Plug-ins: families that installed packages add, as entry points of the group "tetrad.models".

The name of an entry point is an architecture's name in config.json; its value is a function like those of this folder, from
Values to ModelConfig. Entry points are read only if a model's architecture is not in the registry: a plug-in cannot replace a
built-in family, and other models load as fast as without plug-ins. docs/models.md shows a plug-in.
"""

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

from tetrad.services.errors import ModelError, one_line
from tetrad.worker_svc.families.values import Values
from tetrad.worker_svc.model_facts.config import ModelConfig

GROUP = "tetrad.models"


def find_plugin(architecture: str) -> Callable[[Values], ModelConfig] | None:
    """Return the plug-in function for an architecture; None if no package has one.

    Raises ModelError if several packages have one, or if it cannot be imported.
    """
    found = list(entry_points(group=GROUP, name=architecture))
    if len(found) > 1:
        packages = ", ".join(sorted(_package(entry) for entry in found))
        raise ModelError(f"Several packages describe {architecture[:80]}: {packages}. Uninstall all but one.")
    return _loaded(found[0]) if found else None


def _loaded(entry: EntryPoint) -> Callable[[Values], ModelConfig]:
    try:
        function = entry.load()
    except Exception as error:  # importing another package can raise any error
        raise ModelError(
            f"The plug-in {_package(entry)} for {entry.name[:80]} cannot be imported: {one_line(error)}."
        ) from error

    def describe(values: Values) -> ModelConfig:
        config = function(values)
        if not isinstance(config, ModelConfig):
            raise ModelError(
                f"The plug-in {_package(entry)} describes {entry.name[:80]} by {type(config).__name__}, not ModelConfig."
            )
        return config

    return describe


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else entry.value
