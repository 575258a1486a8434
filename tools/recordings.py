"""Downloads recordings of speech (34 MB) from PyPI to the user's cache and prints their directory.

Run by `make speech-test`. The source package of PocketSphinx has sentences of an audiobook of LibriVox, which is in the public
domain, with their words: NAME.wav and NAME.txt in the directory.
"""

import io
import re
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path

from tetrad.services.hub.model_files import CacheSettings

_INDEX = "https://pypi.org/simple/pocketsphinx/"
_RELEASE = "pocketsphinx-5.1.1"
_FOLDER = f"{_RELEASE}/test/data/librivox"
_LINE = re.compile(r"^(?:<s> )?(?P<words>.*?)(?: </s>)? \((?P<name>\S+)\)$")


def main() -> int:
    """Print the path of the directory, after a download unless it is cached."""
    target = CacheSettings().directory() / "recordings"
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        sys.stderr.write(f"Fetching recordings of speech (34 MB) from PyPI into {target}\n")
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as directory:
            files = Path(directory) / "recordings"
            files.mkdir()
            _write(files, _download())
            files.replace(target)
    sys.stdout.write(f"{target}\n")
    return 0


def _download() -> bytes:
    with urllib.request.urlopen(_INDEX) as page:
        found = re.search(rf'href="([^"#]*/{re.escape(_RELEASE)}\.tar\.gz)', page.read().decode())
    if found is None:
        raise SystemExit(f"{_INDEX} has no {_RELEASE}.")
    with urllib.request.urlopen(found[1]) as file:
        return bytes(file.read())


def _write(directory: Path, package: bytes) -> None:
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        members = {Path(each.name).name: each for each in archive.getmembers() if each.name.startswith(f"{_FOLDER}/")}

        def read(name: str) -> bytes:
            file = archive.extractfile(members[name])
            assert file is not None
            return file.read()

        for line in read("transcription").decode().splitlines():
            match = _LINE.match(line)
            if match is not None and f"{match['name']}.wav" in members:
                (directory / f"{match['name']}.wav").write_bytes(read(f"{match['name']}.wav"))
                (directory / f"{match['name']}.txt").write_text(match["words"] + "\n")


if __name__ == "__main__":
    sys.exit(main())
