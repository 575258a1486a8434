"""Replacement: the files of other weights of a served model, which an update names.

The check reads the headers of both checkpoints, so that files that do not fit are refused while the model serves. To load them,
a directory is laid out with the new weights and the model's own other files: an update brings weights alone. Files that change
between check and load are refused by a digest of their names, sizes and times. Knows nothing of devices.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from tetrad.services.errors import ModelError
from tetrad.services.models.model_directory import MAX_TEXT_BYTES, find_model_file
from tetrad.worker_svc.checkpoint.model_config import apply_overrides, read_model_config
from tetrad.worker_svc.checkpoint.safetensors_file import SafetensorsFile
from tetrad.worker_svc.checkpoint.shards import weight_files
from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.families.registry import find_family, read_config, supported_config
from tetrad.worker_svc.families.values import architecture_of

_GGUF = ".gguf"
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", _GGUF, ".index.json")
"""Ends of the names of files that hold weights, or that list such files."""
_OUTPUT_LAYER = "lm_head.weight"

Shape = tuple[int, ...]


def check_replacement(served: LoadRequest, new: Path) -> str:
    """Check that files fit a model; return their digest.

    Args:
        served: the model as it was started.
        new: a directory, which needs no config.json, or a .gguf file.

    Raises ModelError, which names the tensor and both shapes, or the value of the config, if a file is missing or does not fit.
    """
    digest, own = files_digest(new), served.path
    if (own.suffix == _GGUF) != (new.suffix == _GGUF):
        raise ModelError(
            f"{new}: the served model is {own.name}; weights of an update need the same format, a directory or .gguf."
        )
    config = _config_of(own, served)
    if new.suffix != _GGUF and not served.random_weights:
        _check_shapes(own, new, may_lack=_draft_layers(config))
    if new.suffix == _GGUF or (new / "config.json").exists():
        _check_config(config, _config_of(new, served), new)
    return digest


def files_digest(path: Path) -> str:
    """Return a hash of the names, sizes and times of the files with weights; raises ModelError if there are none."""
    hashed = hashlib.sha256()
    for file in _files_of(path):
        try:
            facts = file.stat()
        except OSError as error:
            raise ModelError(f"{file} cannot be read: {error.strerror}.") from error
        hashed.update(f"{file.name}\0{facts.st_size}\0{facts.st_mtime_ns}\0".encode())
    return hashed.hexdigest()


def check_unchanged(path: Path, digest: str) -> None:
    """Raise ModelError if the files of an update have changed since they were checked; an empty digest allows any files."""
    if digest and files_digest(path) != digest:
        raise ModelError(f"The weights in {path} have changed since the update that named them; update the weights again.")


@contextmanager
def laid_out(served: LoadRequest, new: Path) -> Iterator[Path]:
    """Provide a model's files with other weights, as a path that loaders read until the end of the context.

    If the model drafts with its MTP layer and the update has none, as trainers save checkpoints, the layer stays as it was.

    Args:
        served, new: see check_replacement.
    """
    if new.suffix == _GGUF:
        yield new
        return
    with tempfile.TemporaryDirectory(prefix="tetrad-weights-") as folder:
        made = Path(folder)
        _copy_others(served.path, made)
        for file in weight_files(new):
            (made / file.name).symlink_to(file.resolve())
        if served.draft_method == "mtp":
            _keep_draft_layers(served, new, made / "served-draft-layers.safetensors")
        yield made


def _keep_draft_layers(served: LoadRequest, new: Path, path: Path) -> None:
    """Write the tensors of the served model's draft layers that an update lacks to a file."""
    prefixes, given = _draft_layers(_config_of(served.path, served)), _shapes_of(new)
    kept = {
        name: file.get(name)
        for file in _open_all(served.path)
        for name in file.names()
        if name.startswith(prefixes) and name not in given
    }
    if kept:
        save_file(kept, path)


def _copy_others(own: Path, made: Path) -> None:
    """Copy the small files of a model, and link the weights of its folders, such as those of further dense layers."""
    for entry in own.iterdir():
        if entry.is_dir() and not entry.is_symlink() and not entry.name.startswith("."):
            (made / entry.name).mkdir()
            for file in entry.iterdir():
                if _is_weight(file) and file.is_file():
                    (made / entry.name / file.name).symlink_to(file.resolve())
                else:
                    _copy(file, made / entry.name)
        elif not _is_weight(entry):
            _copy(entry, made)


def _copy(file: Path, folder: Path) -> None:
    """Copy a file that loaders of the model's directory may read; a link that leads out of the directory is left out."""
    with suppress(ModelError):
        found = find_model_file(file.parent, file.name)
        if found is not None and found.stat().st_size <= MAX_TEXT_BYTES:
            shutil.copyfile(found, folder / file.name)


def _is_weight(path: Path) -> bool:
    return path.name.endswith(_WEIGHTS)


def _files_of(path: Path) -> list[Path]:
    if path.suffix == _GGUF:
        return [path]
    if not path.is_dir():
        raise ModelError(f"{path} is neither a directory with weights nor a .gguf file.")
    return weight_files(path)


def _check_config(own: Mapping[str, Any], new: Mapping[str, Any], path: Path) -> None:
    """Raise ModelError if a value that changes results differs; of models that no family describes, the architecture alone."""
    names = architecture_of(own), architecture_of(new)
    if names[0] != names[1]:
        raise ModelError(f"{path} has a model of {names[1][:100]}, but {names[0]} is served.")
    if find_family(names[0]) is None:
        return
    found = _difference(asdict(read_config(own)), asdict(read_config(new)))
    if found is not None:
        name, served, given = found
        raise ModelError(f"{path} has a config with {name} {given!s:.100}, but that of the served model is {served!s:.100}.")


def _difference(served: object, given: object, name: str = "") -> tuple[str, object, object] | None:
    """Return the name of the first value that differs in two descriptions of a model, and both values."""
    if served == given:
        return None
    pairs: list[tuple[str, object, object]] = []
    if isinstance(served, Mapping) and isinstance(given, Mapping):
        pairs = [(f"{name}.{key}", value, given.get(key)) for key, value in served.items()]
    elif isinstance(served, tuple) and isinstance(given, tuple) and len(served) == len(given):
        pairs = [(f"{name}[{place}]", *pair) for place, pair in enumerate(zip(served, given, strict=True))]
    inner = (_difference(value, other, key) for key, value, other in pairs)
    return next((each for each in inner if each is not None), (name.lstrip("."), served, given))


def _check_shapes(own: Path, new: Path, may_lack: tuple[str, ...]) -> None:
    """Raise ModelError if a tensor has another shape, or is missing while there is none in its place under another name."""
    served, given = _shapes_of(own), _shapes_of(new)
    for name, shape in given.items():
        if served.get(name, shape) != shape:
            raise ModelError(f"{new}: tensor {name[:200]} has shape {shape}, but that of the served model has {served[name]}.")
    missing = [name for name in served if name not in given and name != _OUTPUT_LAYER and not name.startswith(may_lack)]
    if given and missing and given.keys() <= served.keys():
        name = missing[0]
        raise ModelError(f"{new} has no tensor {name[:200]}; that of the served model has shape {served[name]}.")


def _shapes_of(directory: Path) -> dict[str, Shape]:
    """Return the shapes of the tensors in safetensors files; other formats are checked while they are loaded."""
    return {name: file.shape(name) for file in _open_all(directory) for name in file.names()}


def _open_all(directory: Path) -> list[SafetensorsFile]:
    return [SafetensorsFile(path) for path in weight_files(directory) if path.suffix == ".safetensors"]


def _config_of(path: Path, served: LoadRequest) -> dict[str, Any]:
    return apply_overrides(read_model_config(path), served.hf_overrides_json)


def _draft_layers(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the beginnings of the names of a model's draft layers (MTP); empty: it has none."""
    described = find_family(architecture_of(config)) is not None
    return supported_config(config).tensors.unused_layers if described else ()
