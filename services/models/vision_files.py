"""Vision files: finds out from a model's directory whether the model reads images: its config describes a vision model, and an
image processor's settings are there. Knows no families."""

from pathlib import Path

from tetrad.services.models.model_directory import find_model_file, read_model_json

_PROCESSORS = ("preprocessor_config.json", "processor_config.json")


def reads_images(directory: Path) -> bool:
    """Return whether a model has a vision model and the settings of an image processor. Raises ModelError for unreadable files.

    Whether a service supports them is known only when it has loaded the model.
    """
    config = read_model_json(directory, "config.json") or {}
    return "vision_config" in config and any(find_model_file(directory, name) is not None for name in _PROCESSORS)
