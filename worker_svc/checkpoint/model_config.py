"""Model config files: reads a model's config without its weights, from config.json or GGUF metadata. Never imports torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tetrad.services.errors import ModelError
from tetrad.services.models.inner_configs import overridden
from tetrad.services.models.model_directory import parse_json_object, read_model_json


def read_model_config(path: Path) -> dict[str, Any]:
    """Return the dict of config.json for a directory or a .gguf file; raise ModelError if it cannot be read."""
    if path.suffix == ".gguf":
        from tetrad.worker_svc.checkpoint.gguf_reader import GgufFile

        return GgufFile(path).config
    return read_config_file(path)


def read_config_file(directory: Path) -> dict[str, Any]:
    """Return the dict in a directory's config.json; raise ModelError if it is missing or not a JSON object.

    The quantization of older ModelOpt checkpoints is in a file of its own; it is added as `quantization_config`.
    """
    config = read_model_json(directory, "config.json")
    if config is None:
        raise ModelError(f"{directory} has no config.json.")
    if config.get("quantization_config") is None:
        described = (read_model_json(directory, "hf_quant_config.json") or {}).get("quantization")
        if isinstance(described, Mapping) and described.get("quant_algo") is not None:
            config["quantization_config"] = {"quant_method": "modelopt", **described}
    return config


def apply_overrides(config: Mapping[str, Any], overrides_json: str) -> dict[str, Any]:
    """Return the config with the values of a JSON object, which replace its own; an empty text changes nothing.

    The values of an inner config, such as text_config, replace its own one by one.
    """
    return overridden(config, parse_json_object(overrides_json, "hf_overrides") if overrides_json else {})
