"""docs/kubernetes.md: its blocks of commands, its tables, and what a run of a block came to."""

import re
from dataclasses import dataclass

import yaml

from tests.kubernetes.manifests import ROOT, Object

PAGE = (ROOT / "docs/kubernetes.md").read_text()
_BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def block_with(text: str) -> str:
    """Return the one block of commands that holds a text."""
    (found,) = [block for block in _BLOCK.findall(PAGE) if text in block]
    return str(found)


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the tables of a section, headings left out."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    tables = re.findall(r"^\|[-|]+\|\n((?:\|.*\n)+)", section + "\n", re.MULTILINE)
    return [line.strip("| ").split(" | ") for table in tables for line in table.splitlines()]


@dataclass(frozen=True)
class Call:
    """A program that a block started, and what it wrote."""

    program: str
    arguments: list[str]
    output: str


def applied(calls: list[Call]) -> list[Object]:
    """Return the objects that a cluster would have been given."""
    return [each for call in calls if call.program == "kubectl" for each in yaml.safe_load_all(call.output) if each]
