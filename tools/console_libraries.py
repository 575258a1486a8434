"""Copies the libraries of the console's page from npm, at the versions that libraries.json pins.

`python tools/console_libraries.py` refuses a file whose SHA-256 sum differs from the pinned one. To upgrade a library,
change its version in libraries.json and run this program with --new, which pins the sums of the new files. It needs npm.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VENDOR = Path(__file__).parents[1] / "frontend/api/http/console/static/vendor"
LIST = VENDOR / "libraries.json"


def target_of(package: str, name: str) -> Path:
    """Return the path of a package's file: scripts keep their names, licences get the name of the package."""
    base = Path(name).name
    return VENDOR / (f"{package}.{base}" if base.startswith("LICENSE") else base)


def copy(library: dict[str, object], *, take_new: bool) -> None:
    """Copy the files of one library, and set their SHA-256 sums in `library`."""
    package, files = str(library["package"]), library["files"]
    assert isinstance(files, dict)
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", "--pack-destination", folder, f"{package}@{library['version']}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        [archive] = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as packed:
            for name, pinned in files.items():
                member = packed.extractfile(f"package/{name}")
                assert member is not None, f"{package} has no {name}"
                content = member.read()
                files[name] = hashlib.sha256(content).hexdigest()
                if files[name] != pinned and not take_new:
                    sys.exit(f"console_libraries: {name} of {package} is not the pinned one; --new takes it")
                target_of(package, name).write_bytes(content)


def main() -> None:
    """Copy the files of all libraries."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--new", action="store_true", help="pin the sums of the files as they are now")
    take_new = parser.parse_args().new
    libraries = json.loads(LIST.read_text())
    for library in libraries:
        copy(library, take_new=take_new)
    LIST.write_text(json.dumps(libraries, indent=2) + "\n")


if __name__ == "__main__":
    main()
