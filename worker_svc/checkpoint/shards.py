"""Shards: finds the files of weights in a model's directory: one file, or several files that an index lists.

Never imports torch, so that commands can check a directory.
"""

from pathlib import Path

from tetrad.services.errors import ModelError
from tetrad.services.models.model_directory import find_model_file, list_model_files, read_model_json

SAFETENSORS, PYTORCH = "*.safetensors", "pytorch_model*.bin"
_LAYOUTS = {SAFETENSORS: "model.safetensors.index.json", PYTORCH: "pytorch_model.bin.index.json"}
"""Pattern of a format's files -> the name of their index; the first format with existing files is used."""
_MAX_NAMED = 10
_OTHER_FORM = "consolidated"
"""Beginning of the names of files with the same weights in Mistral's form, beside those in Hugging Face's."""


def weight_files(directory: Path) -> list[Path]:
    """Return the files of a directory's weights, all of one format.

    Raises:
        ModelError: there are none, an index is broken, or lists files that do not exist.
    """
    for pattern, index in _LAYOUTS.items():
        if paths := _find_shards(directory, index, pattern):
            return paths
    raise ModelError(f"{directory} lacks any {' or '.join(_LAYOUTS)} file.")


def _find_shards(directory: Path, index_name: str, pattern: str) -> list[Path]:
    """Return the files that an index lists, or without an index the files that match a pattern, if any.

    Raises:
        ModelError: the index is broken, or lists files that do not exist.
    """
    index = read_model_json(directory, index_name)
    if index is None:
        paths = list_model_files(directory, pattern, is_weights=True)
        return [path for path in paths if not path.name.startswith(_OTHER_FORM)] or paths
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ModelError(f"{directory / index_name} is not an index of files of weights.")
    found = {name: find_model_file(directory, name, is_weights=True) for name in sorted(set(weight_map.values()))}
    missing = [repr(name[:100]) for name, path in found.items() if path is None][:_MAX_NAMED]
    if missing or not found:
        raise ModelError(f"{directory} lacks {', '.join(missing) or 'any file named by its index'}.")
    return [path for path in found.values() if path is not None]
