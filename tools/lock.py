"""Prints requirements.lock: every installed distribution with its exact version. Run by `make lock`.

The file has only names and versions: no paths, no hosts and no local versions ("+cpu"), so that it works with any package index
that has the releases.
"""

import sys
from importlib.metadata import distributions

HEADER = """\
# Every package of the development environment, pinned. Written by `make lock`; installed by `make setup`; `make serve` installs
# those of requirements/.
# Works for Python 3.11 to 3.14. On a machine without a GPU a CPU build of torch is enough: point pip's index at one.
"""


def main() -> None:
    """Print the lock file."""
    own = {"pip", "tetrad"}
    pins = {dist.metadata["Name"].lower().replace("_", "-"): dist.version.partition("+")[0] for dist in distributions()}
    lines = [f"{name}=={version}\n" for name, version in sorted(pins.items()) if name not in own]
    sys.stdout.write(HEADER + "".join(lines))


if __name__ == "__main__":
    main()
