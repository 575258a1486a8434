"""Hub download: a model of the Hugging Face hub -> its directory or .gguf file in the client's cache.

Called by model_files.py. The cache is used without asking the hub if it has all that is needed. Otherwise one process at a time
lists the repository, checks config.json before any weights, checks the free space, and downloads the files that are needed;
broken downloads resume. Address, token, proxies and offline mode are the client's own (HF_ENDPOINT, HF_TOKEN,
HF_HUB_OFFLINE). Blocks (disk, network).
"""

import contextlib
import glob
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tetrad.services.errors import NotFound, TetradError
from tetrad.services.hub.cache import cache_directory, find_cached, find_snapshot, repository_directory
from tetrad.services.hub.name import HubName
from tetrad.services.hub.problem import describe_problem
from tetrad.services.hub.selection import NothingToSelect, Selection, select_files
from tetrad.services.models.file_lock import locked
from tetrad.services.models.model_directory import read_model_json

ConfigCheck = Callable[[Mapping[str, Any]], object]
"""Takes a model's config.json; raises ModelError if the model cannot run."""
Report = Callable[[str], None]
"""Takes one line about a download that begins, for people."""

_TIMEOUT_S = 30.0
_BYTES_BAR = "huggingface_hub.snapshot_download"
"""The client's name for the bar of the bytes of all files."""
_UNITS = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3), ("bytes", 1))
_SPARE_BYTES = 64 << 20
"""Stays free beside a download: other processes write, too."""


@dataclass(frozen=True, slots=True)
class HubAccess:
    """Settings of the hub's client that a program gives with its model.

    Attributes:
        token: of an account; None or True: HF_TOKEN or the token of a login; False: none is sent.
        cache: directory that holds the downloaded files; None: the client's own (HF_HUB_CACHE, HF_HOME).
    """

    token: str | bool | None = None
    cache: Path | None = None

    @property
    def directory(self) -> Path:
        """Return the directory of the downloaded files."""
        return self.cache or cache_directory()


@dataclass(frozen=True, slots=True)
class HubRequest:
    """A model to download.

    Attributes:
        name: of the model.
        revision: branch, tag or commit; None: the main branch.
        with_weights: whether weights are needed, or only the tokenizer's files.
        check: of config.json, before weights are downloaded; None: none.
        refresh: ask the hub for the revision's newest files even if the cache has all of an earlier state.
        access: what the client uses in place of its own settings.
    """

    name: HubName
    revision: str | None = None
    with_weights: bool = True
    check: ConfigCheck | None = None
    refresh: bool = False
    access: HubAccess = HubAccess()


def fetch_from_hub(request: HubRequest, report: Report) -> Path:
    """Return the directory or .gguf file of a model, downloading what the cache lacks.

    Args:
        request: what to fetch.
        report: called when a download begins, or waits for another process's.

    Raises:
        NotFound: the model cannot be had; one line that says why and what to do.
        TetradError: what the check raises.
    """
    name = request.name
    try:
        import huggingface_hub  # noqa: F401 - the frontend's image does without
    except ImportError as error:
        text = f"The package huggingface_hub is not installed, which downloads {name}. Install it, or give a model's path."
        raise NotFound(text, field="model") from error
    if not request.refresh and (cached := _find_cached(request)) is not None:
        return cached
    lock = request.access.directory / ".locks" / repository_directory(name.repository).name / "tetrad.lock"
    waiting = f"Waiting for another process that downloads {name.repository}"
    with _one_line_problems(name, request.revision), locked(lock, on_wait=lambda: report(waiting)):
        # The other process may have fetched the same.
        return (None if request.refresh else _find_cached(request)) or _download(request, report)


@dataclass(frozen=True, slots=True)
class HubModel:
    """The hub's description of a model.

    Attributes:
        config: of config.json; None: the repository has none.
        num_parameters: None: the hub does not tell.
        weights_bytes: of the weights that would be downloaded.
    """

    config: Mapping[str, Any] | None
    num_parameters: int | None
    weights_bytes: int


def look_up(name: HubName, revision: str | None) -> HubModel:
    """Return the hub's description of a model, downloading its config.json at most; NotFound as for `fetch_from_hub`."""
    with _one_line_problems(name, revision):
        access = HubAccess()
        sizes, num_parameters = _list_repository(name.repository, revision, access)
        selection = select_files(sizes, name.gguf)
        weights_bytes = sum(sizes[file] for file in selection.files if file.endswith((".safetensors", ".gguf", ".bin")))
        config = None if selection.gguf or "config.json" not in sizes else _fetch_config(name.repository, revision, access)
        return HubModel(config, num_parameters, weights_bytes)


@contextlib.contextmanager
def _one_line_problems(name: HubName, revision: str | None) -> Iterator[None]:
    """Turn whatever a download raises into one NotFound; our own errors pass."""
    try:
        yield
    except TetradError:
        raise
    except NothingToSelect as error:
        raise _not_found(name, str(error)) from error
    except Exception as error:  # the client's errors, its HTTP library's and the system's
        raise _not_found(name, describe_problem(error, name, revision, _endpoint())) from error


def _find_cached(request: HubRequest) -> Path | None:
    return find_cached(request.name, request.revision, with_weights=request.with_weights, cache=request.access.cache)


def _download(request: HubRequest, report: Report) -> Path:
    from huggingface_hub import snapshot_download

    name, revision, access = request.name, request.revision, request.access
    sizes = _list_repository(name.repository, revision, access)[0]
    selection = select_files(sizes, name.gguf, with_weights=request.with_weights)
    if request.check is not None and request.with_weights and selection.gguf is None:
        request.check(_fetch_config(name.repository, revision, access))
    missing_bytes = _missing_bytes(selection, sizes, find_snapshot(name.repository, revision, access.cache))
    _check_free_space(name, missing_bytes, access.directory)
    if missing_bytes:
        report(f"Downloading {name} ({_size_text(missing_bytes)}) from {_endpoint()} into {access.directory}")
    patterns = [glob.escape(file) for file in selection.files]
    with _progress_bar() as bar:
        snapshot = Path(
            snapshot_download(
                name.repository,
                revision=revision,
                allow_patterns=patterns,
                tqdm_class=bar,
                token=access.token,
                cache_dir=access.cache,
            )
        )
    return snapshot / selection.gguf if selection.gguf else snapshot


def _list_repository(repository: str, revision: str | None, access: HubAccess) -> tuple[dict[str, int], int | None]:
    """Return a repository's files and their bytes, and its parameters, if the hub tells; raises the client's errors."""
    from huggingface_hub import HfApi

    # Unlike list_repo_tree, this does not retry for 20 s where there is no network.
    info = HfApi(token=access.token).model_info(repository, revision=revision, files_metadata=True, timeout=_TIMEOUT_S)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    return sizes, info.safetensors.total if info.safetensors else None


def _fetch_config(repository: str, revision: str | None, access: HubAccess) -> dict[str, Any]:
    """Return a repository's config.json, downloaded into the cache; raises the client's errors."""
    from huggingface_hub import hf_hub_download

    with _progress_bar() as bar:
        path = Path(
            hf_hub_download(
                repository, "config.json", revision=revision, tqdm_class=bar, token=access.token, cache_dir=access.cache
            )
        )
    return read_model_json(path.parent, path.name) or {}


def _missing_bytes(selection: Selection, sizes: Mapping[str, int], snapshot: Path | None) -> int:
    """Return the number of bytes left to download; partly downloaded files count as missing."""
    return sum(sizes[file] for file in selection.files if snapshot is None or not (snapshot / file).is_file())


def _check_free_space(name: HubName, needed_bytes: int, cache: Path) -> None:
    existing = next(path for path in (cache, *cache.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if needed_bytes and needed_bytes + _SPARE_BYTES > free:
        raise _not_found(
            name,
            f"it needs {_size_text(needed_bytes)}, but {cache} has {_size_text(free)} free: make room, or set HF_HUB_CACHE to "
            "a directory on a larger disk",
        )


@contextlib.contextmanager
def _progress_bar() -> Iterator[Any]:
    """Give a class of progress bars that shows one of the client's bars, that of all bytes, and only in a terminal.

    The client leaves its bars open; they are closed at the end.
    """
    from huggingface_hub.utils.tqdm import tqdm

    made: list[Any] = []

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            shown = {"desc": "Downloading", "disable": None} if kwargs.get("name") == _BYTES_BAR else {"disable": True}
            super().__init__(*args, **{**kwargs, **shown})  # type: ignore[no-untyped-call]
            made.append(self)

        def set_description(self, desc: str | None = None, refresh: bool | None = True) -> None:
            """Keep "Downloading": the client calls the bytes that it writes a reconstruction."""

    try:
        yield Bar
    finally:
        for bar in made:
            bar.close()


def _endpoint() -> str:
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def _size_text(size_bytes: int) -> str:
    unit, size = next((pair for pair in _UNITS if size_bytes >= pair[1]), _UNITS[-1])
    return f"{size_bytes / size:.1f} {unit}" if unit == "GB" else f"{size_bytes / size:.0f} {unit}"


def _not_found(name: HubName, reason: str) -> NotFound:
    return NotFound(f"Model {str(name)!r} cannot be downloaded: {reason}.", field="model")
