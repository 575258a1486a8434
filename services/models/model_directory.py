"""Model directory: reads the files of a model's directory, and no files outside of it.

Called by the loaders of the tokenizer and the worker. A directory may come from an untrusted source: names in an index and
symbolic links must not lead out of it, and only regular files of limited size are read. There are two exceptions. Snapshots of
Hugging Face's cache are links to the `blobs` beside them. Weights, often stored on another disk, may be links to any file,
since their bytes are never shown. Knows nothing else of the content.
"""

import json
import re
import stat
from pathlib import Path
from typing import Any

from tetrad.services.errors import ModelError

MAX_TEXT_BYTES = 64 << 20
"""Maximum bytes of a file that is parsed as a whole: the largest tokenizer.json has about 35 MB."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # as JSON writes it
_MAX_NAME_BYTES = 255  # the limit of every common file system


def find_model_file(directory: Path, name: str, *, is_weights: bool = False) -> Path | None:
    """Return the path of a regular file in a model's directory; None if there is no such file.

    Args:
        directory: the model's.
        name: name of the file.
        is_weights: whether it contains weights, and so may be a link to any file.

    Raises:
        ModelError: the name is a path, a link leads out of the directory, or the name is not that of a regular file.
    """
    if not _is_file_name(name):
        raise ModelError(f"{directory}: {name[:200]!r} is not the name of a file in the model's directory.", field="model")
    path = directory / name
    try:
        target = path.resolve(strict=True)
        mode = target.stat().st_mode
    except FileNotFoundError:
        return None
    except (OSError, RuntimeError) as error:  # RuntimeError: a cycle of links, before Python 3.13
        raise ModelError(f"{path} cannot be read: {_reason(error)}.", field="model") from error
    if not is_weights and not _belongs_to(target, directory.resolve()):
        raise ModelError(
            f"{path} is a link to {target}, outside of the model's directory; put a copy of the file there.", field="model"
        )
    if not stat.S_ISREG(mode):
        raise ModelError(f"{path} is no regular file.", field="model")
    return path


def list_model_files(directory: Path, pattern: str, *, folder: str = "", is_weights: bool = False) -> list[Path]:
    """Return the paths that match a pattern, sorted.

    Args:
        directory: the model's.
        pattern: glob pattern of the names.
        folder: folder in the directory to search instead of its top level.
        is_weights: as in find_model_file.

    Raises:
        ModelError: as in find_model_file; or the folder is a link.
    """
    if folder and (directory / folder).is_symlink():
        raise ModelError(f"{directory / folder} is a link, not a folder of the model's directory.", field="model")
    try:
        names = sorted(path.name for path in (directory / folder).glob(pattern))
    except OSError as error:
        raise ModelError(f"{directory / folder} cannot be read: {_reason(error)}.", field="model") from error
    found = (find_model_file(directory / folder, name, is_weights=is_weights) for name in names)
    return [path for path in found if path is not None]


def read_model_text(directory: Path, name: str) -> str | None:
    """Return the text of a file in a model's directory; None if there is no such file.

    Raises:
        ModelError: as in find_model_file, or the file is not UTF-8 or is larger than MAX_TEXT_BYTES.
    """
    path = find_model_file(directory, name)
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TEXT_BYTES + 1)
        if len(data) <= MAX_TEXT_BYTES:
            return data.decode("utf-8")
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {_reason(error)}.", field="model") from error
    raise ModelError(f"{path} is larger than {MAX_TEXT_BYTES} bytes, the limit for such files.", field="model")


def read_model_json(directory: Path, name: str) -> dict[str, Any] | None:
    """Return the JSON object in a file of a model's directory; None if there is no file. Raises ModelError otherwise."""
    text = read_model_text(directory, name)
    return None if text is None else parse_json_object(text, str(directory / name))


def parse_json_object(text: str, name: str) -> dict[str, Any]:
    """Return the JSON object in a text. Raises ModelError, which calls the text `name`, if it is not an object."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ModelError(f"{name} is nested too deeply.", field="model") from None
    except ValueError as error:
        raise ModelError(f"{name} is not JSON: {error}.", field="model") from error
    if not isinstance(value, dict):
        raise ModelError(f"{name} holds {type(value).__name__}, not a JSON object.", field="model")
    if _SURROGATE.search(text) and not _is_unicode(json.dumps(value, ensure_ascii=False)):
        raise ModelError(f"{name} holds half of a surrogate pair.", field="model")
    return value


def _is_unicode(text: str) -> bool:
    """Return whether a text has no half of a surrogate pair, which JSON can contain and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_file_name(name: str) -> bool:
    """Return whether a text is a possible file name and not a path."""
    if not _is_unicode(name) or len(name.encode()) > _MAX_NAME_BYTES:
        return False
    return "\0" not in name and name not in ("", ".", "..") and Path(name).name == name


def _belongs_to(target: Path, directory: Path) -> bool:
    if target.is_relative_to(directory):
        return True
    # .../models--org--name/snapshots/<commit>/file -> .../models--org--name/blobs/<hash>
    repository = next((parent for parent in directory.parents if parent.name == "snapshots"), None)
    return repository is not None and target.parent == repository.parent / "blobs"


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
