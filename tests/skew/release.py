"""Release: the services of the previous release, as a wheel makes them, beside those of the working tree.

The previous release is the last tag before HEAD; before the first tag, the commit that the file PREVIOUS names. Its wheel is
built once from `git archive` and unpacked into the user's cache.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PREVIOUS = Path(__file__).with_name("PREVIOUS")


class NoRelease(Exception):
    """There is no previous release to be had; says why."""


def previous_release() -> Path:
    """Return the directory with the previous release's packages; NoRelease if the clone does not have its commit."""
    commit = _commit_of(_last_tag() or _PREVIOUS.read_text().strip())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tetrad" / "releases"
    release = cache / commit
    if not release.exists():
        cache.mkdir(parents=True, exist_ok=True)
        # Under its name once it is whole: tests of several processes may want it at the same time.
        with tempfile.TemporaryDirectory(dir=cache) as making:
            _unpack(_build(commit, Path(making)), Path(making) / "release")
            try:
                (Path(making) / "release").rename(release)
            except OSError:
                if not release.exists():
                    raise
    return release


def _last_tag() -> str | None:
    """Return the last tag before HEAD, or None."""
    told = _git("describe", "--tags", "--abbrev=0", "HEAD^")
    return told.stdout.strip() if told.returncode == 0 else None


def _commit_of(name: str) -> str:
    told = _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    if told.returncode:
        raise NoRelease(f"the previous release, {name}, is not in this clone (git fetch --unshallow gets it)")
    return told.stdout.strip()


def _build(commit: str, directory: Path) -> Path:
    """Return the wheel of a commit."""
    source, archive = directory / "source", directory / "source.tar"
    subprocess.run(["git", "archive", "--output", str(archive), commit], cwd=ROOT, check=True)
    shutil.unpack_archive(archive, source, filter="data")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(directory), str(source)]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode:
        raise RuntimeError(f"The wheel of {commit} could not be built:\n{built.stdout[-2000:]}{built.stderr[-2000:]}")
    [wheel] = directory.glob("*.whl")
    return wheel


def _unpack(wheel: Path, directory: Path) -> None:
    with zipfile.ZipFile(wheel) as packages:
        packages.extractall(directory)


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
