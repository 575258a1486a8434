"""The site of the documents: it has every page, and a link on a page leads to a page, a picture or outside the repository."""

import re
from pathlib import Path

import pytest

from tools.docs_site.build import CONFIG, pages, stage

LINK = re.compile(r"\]\(([^)\s]+)\)")


def test_navigation_has_every_page_once():
    # The file holds tags that only mkdocs knows, so it is read as lines.
    navigation = CONFIG.read_text().partition("\nnav:\n")[2]

    listed = re.findall(r"^ *- .*: (\S+\.md)$", navigation, re.MULTILINE)

    assert sorted(listed) == sorted(map(str, pages()))


@pytest.fixture(scope="module")
def staged(tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("docs") / "pages"
    stage(target)
    return target


def test_links_of_staged_pages_lead_somewhere(staged):
    links = [(page, link) for page in staged.rglob("*.md") for link in LINK.findall(page.read_text())]
    local = [(page, link.partition("#")[0]) for page, link in links if not re.match(r"[a-z]+:|#", link)]

    assert len(local) > 100
    assert [(page.name, link) for page, link in local if not (page.parent / link).is_file()] == []


def test_a_link_to_a_file_that_is_no_page_leads_into_the_repository_if_that_is_known(tmp_path):
    stage(tmp_path / "with", source="https://example.org/tetrad/")
    stage(tmp_path / "without")
    with_source, without = ((tmp_path / name / "docs/console.md").read_text() for name in ("with", "without"))

    assert "](https://example.org/tetrad/frontend/api/http/console)" in with_source
    assert "[frontend/api/http/console]" not in without
    assert "frontend/api/http/console" in without
