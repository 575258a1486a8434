"""Config overrides: converts `hf_overrides` to the JSON object whose values the worker uses instead of a model's config.

A function is called in the caller's process, with the config that the worker would read; the values that it changes are sent.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tetrad.services.errors import InvalidRequest
from tetrad.services.models.inner_configs import changed_values


class ModelConfigView:
    """A model's config with its values as attributes, like transformers' PretrainedConfig.

    Args:
        values: the values of config.json, or of GGUF metadata in that form.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.update(values)

    def update(self, values: Mapping[str, Any]) -> None:
        """Replace values."""
        for name, value in values.items():
            setattr(self, name, value)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value, or `default` if there is none."""
        return getattr(self, name, default)

    def to_dict(self) -> dict[str, Any]:
        """Return the values."""
        return dict(vars(self))

    def __getitem__(self, name: str) -> Any:
        return vars(self)[name]

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self))


Overrides = Mapping[str, Any] | Callable[[Any], Any]
"""Values by their names in config.json, or a function that returns the changed config for a ModelConfigView."""


def overrides_json(model: Path, overrides: Overrides) -> str:
    """Return the JSON object of the values to replace.

    Args:
        model: directory or .gguf file whose config is passed to a function.
        overrides: the program's overrides.

    Raises:
        InvalidRequest: a value is not valid JSON, or a function does not return a config.
        ModelError: the overrides are a function, and the config cannot be read.
    """
    if callable(overrides):
        # The worker's code reads a model; programs without a function do not need it.
        from tetrad.worker_svc.checkpoint.model_config import read_model_config

        values = changes(read_model_config(model), overrides)
    else:
        values = dict(overrides)
    try:
        return json.dumps(values)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"hf_overrides cannot be sent to the worker: {error}.", field="hf_overrides") from error


def changes(config: Mapping[str, Any], overrides: Overrides) -> dict[str, Any]:
    """Return the values that overrides replace in a config; InvalidRequest if a function does not return a config."""
    if not callable(overrides):
        return dict(overrides)
    changed = overrides(ModelConfigView(json.loads(json.dumps(config, default=_listed))))
    if isinstance(changed, Mapping):
        after = dict(changed)
    elif hasattr(changed, "to_dict"):
        after = changed.to_dict()
    else:
        text = f"hf_overrides must return the config that it was given, got {type(changed).__name__}."
        raise InvalidRequest(text, field="hf_overrides")
    return changed_values(config, after)


def pooler_config_json(config: Any) -> str:
    """Return a pooler config as JSON; InvalidRequest if it is neither a mapping nor an object with fields.

    Args:
        config: a mapping, or vLLM's PoolerConfig; fields that are None are left out.
    """
    is_data = dataclasses.is_dataclass(config) and not isinstance(config, type)
    fields = dataclasses.asdict(config) if is_data else config
    if not isinstance(fields, Mapping):
        text = f"pooler_config must be a dict or a PoolerConfig, got {type(config).__name__}."
        raise InvalidRequest(text, field="pooler_config")
    try:
        return json.dumps({name: value for name, value in fields.items() if value is not None})
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"pooler_config cannot be sent to the worker: {error}.", field="pooler_config") from error


def _listed(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else list(value)
