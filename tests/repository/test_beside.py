"""docs/beside.md: each of its complaints cites threads and names tests that exist."""

import re

import pytest

from tests.documents import ROOT, Page

PAGE = Page.of("docs/beside.md")
HEADINGS = re.findall(r"^## (\d+\. .*)$", PAGE.text, re.MULTILINE)
THREAD = re.compile(r"\[([\w.-]+) (\d+)\]\(https://github\.com/[\w.-]+/([\w.-]+)/issues/(\d+)\)")


def test_there_are_fifteen():
    assert [int(heading.partition(".")[0]) for heading in HEADINGS] == list(range(1, 16))


@pytest.mark.parametrize("heading", HEADINGS)
def test_a_complaint_cites_threads_and_names_tests_that_exist(heading):
    text = PAGE.section(heading).text
    threads, paths = THREAD.findall(text), re.findall(r"`((?:tests|benchmarks)/[^`]+)`", text)

    assert threads
    assert [thread for thread in threads if thread[1] != thread[3]] == []
    assert any(path.startswith("tests/") for path in paths)
    assert [path for path in paths if not (ROOT / path).exists()] == []
