"""Writes what each service's image needs besides Tetrad itself, from pyproject.toml: files for `pip install -r`.

`python requirements.py`, beside pyproject.toml: common.txt is what every service needs, EXTRA.txt what an extra adds.
Needs nothing but Python.
"""

import tomllib
from pathlib import Path


def main() -> None:
    """Write the files here."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    for name, requirements in {"common": project["dependencies"], **project["optional-dependencies"]}.items():
        Path(f"{name}.txt").write_text("".join(f"{requirement}\n" for requirement in requirements))


if __name__ == "__main__":
    main()
