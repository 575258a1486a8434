"""Page: the commands of docs/deployment.md, by the heading that they stand under."""

import re

from tests.compose.project import ROOT

_SECTION = re.compile(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGE = (ROOT / "docs/deployment.md").read_text()


def commands(heading: str) -> list[str]:
    """Return the blocks of commands of a section."""
    return _BLOCK.findall(dict(_SECTION.findall(PAGE))[heading])
