"""Media files: finds out from a model's directory whether the model reads media: its config describes a vision or audio
model, and a processor's settings are there. Knows no families."""

from pathlib import Path

from tetrad.services.models.model_directory import find_model_file, read_model_json

_MODELS = ("vision_config", "audio_config", "num_mel_bins")
"""Keys of config.json of models that read media; Whisper has the last one."""
_PROCESSORS = ("preprocessor_config.json", "processor_config.json")


def reads_media(directory: Path) -> bool:
    """Return whether a model has a vision or audio model and a processor's settings. Raises ModelError for unreadable files.

    Whether a service supports them is known only when it has loaded the model.
    """
    config = read_model_json(directory, "config.json") or {}
    return any(key in config for key in _MODELS) and any(find_model_file(directory, name) is not None for name in _PROCESSORS)
