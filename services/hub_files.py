"""Hub files: a repository of the Hugging Face hub -> a directory of the hub's cache.

Called by model_files.py. config.json is fetched first, so that a model that cannot run is refused before its weights are
downloaded. A cached snapshot is used only if it is whole: a refused model and an interrupted download leave part of one.
Blocks (disk, network).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tetrad.services.errors import NotFound, TetradError
from tetrad.services.model_directory import read_model_json

ConfigCheck = Callable[[Mapping[str, Any]], object]
"""Takes a model's config.json; raises ModelError if the model cannot run."""

# Weights in other frameworks' formats, which nothing here reads.
_NOT_NEEDED = ["*.bin", "*.pt", "*.pth", "*.msgpack", "*.h5", "*.onnx", "*.ot", "*.tflite", "*.mlmodel", "original/*", "onnx/*"]
_WEIGHTS = ["*.safetensors", "*.gguf"]
_INDEX = "model.safetensors.index.json"


def fetch_from_hub(
    name: str,
    revision: str | None,
    *,
    check: ConfigCheck | None,
    with_weights: bool,
    report: Callable[[str], None],
    what_to_do: str,
) -> Path:
    """Return the directory of a repository's files, downloading them first if they are not all in the cache.

    Args:
        name: of the repository.
        revision: branch, tag or commit.
        check: of config.json, before anything else is downloaded; None: none.
        with_weights: whether weights are needed, or only the tokenizer's files.
        report: told when a download begins.
        what_to_do: ends the error of a model that cannot be had.

    Raises:
        NotFound: the repository, or its config.json, cannot be had.
        TetradError: what `check` raises.
    """
    try:
        # It comes with transformers; the frontend's image has neither.
        from huggingface_hub import hf_hub_download, snapshot_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
    except ImportError as error:
        raise NotFound(
            f"There is no model {name!r} here, and the package huggingface_hub is not installed to fetch it. {what_to_do}",
            field="model",
        ) from error
    ignored = _NOT_NEEDED if with_weights else [*_NOT_NEEDED, *_WEIGHTS]
    try:
        cached = Path(snapshot_download(name, revision=revision, ignore_patterns=ignored, local_files_only=True))
    except (OSError, ValueError):
        cached = None
    if cached is not None and _is_whole(cached, with_weights=with_weights):
        return cached
    report(f"Fetching {name} from the Hugging Face hub")
    try:
        if with_weights:
            config = Path(hf_hub_download(name, "config.json", revision=revision))
            if check is not None:
                check(read_model_json(config.parent, config.name) or {})
        return Path(snapshot_download(name, revision=revision, ignore_patterns=ignored))
    except TetradError:
        raise
    except Exception as error:  # the hub's client raises its own errors, its HTTP library's and the system's
        if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
            reason = "it has no config.json; of a repository of .gguf files, give the path of one"
        else:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise NotFound(
            f"Model {name!r} cannot be had from the Hugging Face hub: {reason}. {what_to_do}", field="model"
        ) from error


def _is_whole(directory: Path, *, with_weights: bool) -> bool:
    """Return whether what is needed is there, as far as names tell."""
    if not with_weights:
        return any(directory.glob("tokenizer*"))
    if not (directory / "config.json").exists():
        return False
    if not (directory / _INDEX).exists():
        return any(directory.glob("*.safetensors"))
    weight_map = (read_model_json(directory, _INDEX) or {}).get("weight_map")
    files = set(weight_map.values()) if isinstance(weight_map, dict) else set()
    return all((directory / str(file)).exists() for file in files)
