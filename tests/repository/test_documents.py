"""Links in documents lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(path for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_local_link_leads_to_a_file(document):
    links = [link for link in LINK.findall(document.read_text()) if not re.match(r"[a-z]+:", link)]

    broken = [link for link in links if not points_somewhere(document, link)]

    assert not broken


def points_somewhere(document: Path, link: str) -> bool:
    path, _, fragment = link.partition("#")
    target = (document.parent / path).resolve() if path else document
    if not target.exists():
        return False
    # "#L12" names a line, anything else a heading.
    if line := re.fullmatch(r"L(\d+)(-L?\d+)?", fragment):
        return int(line[1]) <= len(target.read_text().splitlines())
    return not fragment or target.suffix != ".md" or fragment in headings(target)


def headings(document: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}
