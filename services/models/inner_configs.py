"""Inner configs: configs within a model's config, such as text_config, whose values are overridden one by one, as in vLLM.

Called by the worker and by programs that read a model's config before it. Other objects, such as rope_scaling, are values.
"""

from collections.abc import Mapping
from typing import Any

_END = "_config"
_VALUES = ("quantization_config", "compression_config")
"""Objects that are values, in spite of their names."""


def are_configs(name: str, *values: Any) -> bool:
    """Return whether all values of a name are inner configs."""
    return name.endswith(_END) and name not in _VALUES and all(isinstance(value, Mapping) for value in values)


def overridden(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with other values."""
    return {**config} | {
        name: overridden(config[name], value) if are_configs(name, config.get(name), value) else value
        for name, value in overrides.items()
    }


def changed_values(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides that make one config another one; a removed value becomes null, which has the same effect."""
    values: dict[str, tuple[Any, Any]] = {name: (before.get(name), after.get(name)) for name in {**before, **after}}
    return {
        name: changed_values(old, new) if are_configs(name, old, new) else new
        for name, (old, new) in values.items()
        if new != old
    }
