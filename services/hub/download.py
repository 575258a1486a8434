"""Hub download: downloads a model of the Hugging Face hub into the client's cache, and returns its directory or .gguf file.

Called by model_files.py. If the cache has all needed files, the hub is not contacted. Otherwise one process at a time lists the
repository, checks config.json before any weights, checks the free space, and downloads the needed files; interrupted downloads
resume. Address, token, proxies and offline mode are settings of the hub's client (HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE).
Blocks (disk, network).
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
"""Takes one line for people about a download that begins."""

_TIMEOUT_S = 30.0
_BYTES_BAR = "huggingface_hub.snapshot_download"
"""The client's name for the progress bar of the bytes of all files."""
_UNITS = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3), ("bytes", 1))
_SPARE_BYTES = 64 << 20
"""Minimum free space beside a download, in bytes: other processes write, too."""


@dataclass(frozen=True, slots=True)
class HubAccess:
    """Settings of the hub's client that a program passes with its model.

    Attributes:
        token: token of an account; None or True: HF_TOKEN or the token of a login; False: none is sent.
        cache: directory of the downloaded files; None: the client's own (HF_HUB_CACHE, HF_HOME).
    """

    token: str | bool | None = None
    cache: Path | None = None

    @property
    def directory(self) -> Path:
        """The directory of the downloaded files."""
        return self.cache or cache_directory()

    @property
    def directory_setting(self) -> str:
        """The name of the setting that chooses the directory."""
        return "HF_HUB_CACHE" if self.cache is None else "download_dir"


@dataclass(frozen=True, slots=True)
class HubRequest:
    """A model to download.

    Attributes:
        name: name of the model.
        revision: branch, tag or commit; None: the main branch.
        with_weights: whether weights are needed, or only the tokenizer's files.
        check: checks config.json before weights are downloaded; None: no check.
        refresh: whether to get the revision's newest files from the hub even if the cache has all of an earlier state.
        access: settings that replace those of the client.
    """

    name: HubName
    revision: str | None = None
    with_weights: bool = True
    check: ConfigCheck | None = None
    refresh: bool = False
    access: HubAccess = HubAccess()


def fetch_from_hub(request: HubRequest, report: Report) -> Path:
    """Return the directory or .gguf file of a model; download the files that the cache lacks.

    Args:
        request: the model to fetch.
        report: called when a download begins, or waits for that of another process.

    Raises:
        NotFound: the model cannot be downloaded; one line with the reason and what to do.
        TetradError: the error of the check.
    """
    name = request.name
    try:
        import huggingface_hub  # noqa: F401 - the frontend's image does not have it
    except ImportError as error:
        text = f"The package huggingface_hub is not installed, which downloads {name}. Install it, or give a model's path."
        raise NotFound(text, field="model") from error
    if not request.refresh and (cached := _find_cached(request)) is not None:
        return cached
    lock = request.access.directory / ".locks" / repository_directory(name.repository).name / "tetrad.lock"
    waiting = f"Waiting for another process that downloads {name.repository}"
    with _one_line_problems(name, request.revision, request.access), locked(lock, on_wait=lambda: report(waiting)):
        # The other process may have fetched the same model.
        return (None if request.refresh else _find_cached(request)) or _download(request, report)


@dataclass(frozen=True, slots=True)
class HubModel:
    """The hub's description of a model.

    Attributes:
        config: content of config.json; None: the repository has none.
        num_parameters: number of parameters; None: unknown.
        weights_bytes: size of the weights that would be downloaded.
    """

    config: Mapping[str, Any] | None
    num_parameters: int | None
    weights_bytes: int


def look_up(name: HubName, revision: str | None) -> HubModel:
    """Return the hub's description of a model; download at most its config.json. Raises NotFound as `fetch_from_hub` does."""
    access = HubAccess()
    with _one_line_problems(name, revision, access):
        sizes, num_parameters = _list_repository(name.repository, revision, access)
        selection = select_files(sizes, name.gguf)
        weights_bytes = sum(sizes[file] for file in selection.files if file.endswith((".safetensors", ".gguf", ".bin")))
        config = None if selection.gguf or "config.json" not in sizes else _fetch_config(name.repository, revision, access)
        return HubModel(config, num_parameters, weights_bytes)


@contextlib.contextmanager
def _one_line_problems(name: HubName, revision: str | None, access: HubAccess) -> Iterator[None]:
    """Turn any error of a download into one NotFound; TetradErrors pass unchanged."""
    try:
        yield
    except TetradError:
        raise
    except NothingToSelect as error:
        raise _not_found(name, str(error)) from error
    except Exception as error:  # the client's errors, its HTTP library's and the system's
        raise _not_found(name, describe_problem(error, name, revision, _endpoint(), access.directory_setting)) from error


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
    _check_free_space(name, missing_bytes, access)
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
    """Return the bytes of a repository's files by name, and its number of parameters if known; raises the client's errors."""
    from huggingface_hub import HfApi

    # Unlike list_repo_tree, this does not retry for 20 s if there is no network.
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


def _check_free_space(name: HubName, needed_bytes: int, access: HubAccess) -> None:
    cache = access.directory
    existing = next(path for path in (cache, *cache.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if needed_bytes and needed_bytes + _SPARE_BYTES > free:
        raise _not_found(
            name,
            f"it needs {_size_text(needed_bytes)}, but {cache} has {_size_text(free)} free: make room, or set "
            f"{access.directory_setting} to a directory on a larger disk",
        )


@contextlib.contextmanager
def _progress_bar() -> Iterator[Any]:
    """Yield a class of progress bars that shows only the client's bar of all bytes, and only in a terminal.

    The client does not close its bars; they are closed at the end of the context.
    """
    from huggingface_hub.utils.tqdm import tqdm

    made: list[Any] = []

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            shown = {"desc": "Downloading", "disable": None} if kwargs.get("name") == _BYTES_BAR else {"disable": True}
            super().__init__(*args, **{**kwargs, **shown})  # type: ignore[no-untyped-call]
            made.append(self)

        def set_description(self, desc: str | None = None, refresh: bool | None = True) -> None:
            """Keep "Downloading": the client would describe the writing of bytes as a reconstruction."""

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
