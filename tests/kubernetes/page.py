"""docs/kubernetes.md: the page, its tables, and the results of its blocks of commands."""

import re
from dataclasses import dataclass

from tests.documents import Page
from tests.kubernetes.manifests import Object, parsed

PAGE = Page.of("docs/kubernetes.md")


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the tables of a section, headings left out."""
    tables = re.findall(r"^\|[-|]+\|\n((?:\|.*\n)+)", PAGE.section(heading).text, re.MULTILINE)
    return [line.strip("| ").split(" | ") for table in tables for line in table.splitlines()]


@dataclass(frozen=True)
class Call:
    """A program that a block started, and what it wrote."""

    program: str
    arguments: list[str]
    output: str


def applied(calls: list[Call]) -> list[Object]:
    """Return the objects that a cluster would have been given."""
    return [each for call in calls if call.program == "kubectl" for each in parsed(call.output) if each]
