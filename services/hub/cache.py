"""Hub cache: finds models in the cache of the Hugging Face hub's client. Never uses the network.

Layout: models--ORG--NAME/{refs/REVISION, snapshots/COMMIT/FILE, blobs/HASH, trees/COMMIT.json}. A snapshot is whole if it has
every file that the model needs; after an interrupted download it has only some of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tetrad.services.errors import ModelError
from tetrad.services.hub.name import HubName
from tetrad.services.hub.selection import INDEX, PYTORCH_INDEX, NothingToSelect, select_files
from tetrad.services.models.model_directory import read_model_json


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model in the cache.

    Attributes:
        name: its name on the hub.
        revision: branch, tag or commit that was downloaded.
        path: the snapshot's directory, or its .gguf file.
        size_bytes: size of its files.
        is_whole: whether the cache has all files that it needs.
    """

    name: HubName
    revision: str
    path: Path
    size_bytes: int
    is_whole: bool


def cache_directory() -> Path:
    """Return the cache directory of the hub's client (HF_HUB_CACHE, HF_HOME)."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser()


def find_cached(name: HubName, revision: str | None, *, with_weights: bool, cache: Path | None = None) -> Path | None:
    """Return the directory or .gguf file of a model in the cache; None if the cache does not have all of it."""
    snapshot = find_snapshot(name.repository, revision, cache)
    if snapshot is None:
        return None
    known = _listed_files(name.repository, snapshot, cache)
    present = files_in(snapshot)
    try:
        selection = select_files(known or present, name.gguf, with_weights=with_weights)
    except NothingToSelect:
        return None
    needed = {*selection.files, *(() if known or not with_weights or selection.gguf else _indexed_files(snapshot))}
    if not needed <= present or not (with_weights or selection.gguf or any(file.startswith("tokenizer") for file in needed)):
        return None
    return snapshot / selection.gguf if selection.gguf else snapshot


def find_snapshot(repository: str, revision: str | None, cache: Path | None = None) -> Path | None:
    """Return the directory of a revision (branch, tag or commit), whole or not; None if it is not in the cache."""
    root = repository_directory(repository, cache)
    revision = revision or "main"
    reference = root / "refs" / revision
    commit = reference.read_text().strip() if reference.is_file() else revision
    snapshot = root / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def repository_directory(repository: str, cache: Path | None = None) -> Path:
    """Return the directory of a repository in the cache, which need not exist. `cache` None: that of the hub's client."""
    return (cache or cache_directory()) / "--".join(("models", *repository.split("/")))


def files_in(snapshot: Path) -> set[str]:
    """Return the names of a snapshot's files, relative to it, with "/" between folders."""
    return {path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()}


def cached_models() -> Iterator[CachedModel]:
    """Yield every model of the cache: each repository's directory, and each .gguf file."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # it is loaded lazily

    root = cache_directory()
    for directory in sorted(root.glob("models--*")):
        repository = directory.name.removeprefix("models--").replace("--", "/")
        try:
            validate_repo_id(repository)
        except HFValidationError:  # the hub's client did not make this directory
            continue
        references = {path for path in (directory / "refs").rglob("*") if path.is_file()}
        named = {path.relative_to(directory / "refs").as_posix(): path.read_text().strip() for path in references}
        commits = {path.name for path in (directory / "snapshots").glob("*")} - set(named.values())
        for revision in (*sorted(named), *sorted(commits)):
            yield from _models_of(repository, revision)


def _models_of(repository: str, revision: str) -> Iterator[CachedModel]:
    snapshot = find_snapshot(repository, revision)
    if snapshot is None:
        return
    sizes = {file: (snapshot / file).stat().st_size for file in files_in(snapshot)}
    ggufs = {select_files(sizes, file).gguf for file in sizes if file.endswith(".gguf") and "mmproj" not in file.lower()}
    for gguf in sorted(filter(None, ggufs)):
        name = HubName(repository, gguf)
        files = [file for file in select_files(sizes, gguf).files if file.endswith(".gguf")]
        size = sum(sizes[file] for file in files)
        yield CachedModel(name, revision, snapshot / gguf, size, find_cached(name, revision, with_weights=True) is not None)
    if "config.json" in sizes and not ggufs:
        name = HubName(repository)
        is_whole = find_cached(name, revision, with_weights=True) is not None
        yield CachedModel(name, revision, snapshot, sum(sizes.values()), is_whole)


def _listed_files(repository: str, snapshot: Path, cache: Path | None) -> set[str]:
    """Return the names of the files that the hub listed for a snapshot's commit; empty if the list was not kept."""
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    try:
        return {file.path for file in get_cached_repo_tree(repository, revision=snapshot.name, cache_dir=cache)}
    except CachedRepoTreeNotFoundError:
        return set()


def _indexed_files(snapshot: Path) -> set[str]:
    """Return the safetensors files that an index names; without an index, a name that is missing if there are no weights."""
    try:
        index = read_model_json(snapshot, INDEX) or read_model_json(snapshot, PYTORCH_INDEX)
    except ModelError:
        return {INDEX}
    weight_map = (index or {}).get("weight_map")
    return set(map(str, weight_map.values())) if isinstance(weight_map, dict) else set()
