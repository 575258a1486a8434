"""Documents: their links resolve, the flags they name exist, and a test runs the commands they show."""

import functools
import re
import subprocess
import sys
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


@functools.cache
def help_of_all_commands() -> str:
    """Return the `--help` of each command; one process prints them all, as most of the time goes into imports."""
    call = [sys.executable, "-c", ALL_HELP]
    return subprocess.run(call, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize("riddle", ["tuple[", "(default: None)", "(default: ())", "<class", " Most ", "Optional["])
def test_help_has_no_python_and_no_riddles(riddle):
    assert riddle not in help_of_all_commands()


ALL_HELP = """
from tetrad.cli import main

services = ("serve", "frontend", "tokenizer", "engine-core", "worker")
for command in (*services, "run-batch", "status", "chat", "bench", "pull", "list", "show", "plan"):
    try:
        status = main([command, "--help"])
    except SystemExit as end:
        status = end.code
    assert not status, command
"""


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_flag_and_variable_exists(document):
    text = document.read_text()
    flags = set(re.findall(r"`[^`\n]*?(--[a-z][a-z-]+)", text))
    flags |= {"--" + name.lower().replace("_", "-") for name in re.findall(r"TETRAD_FRONTEND_([A-Z_]+[A-Z])", text)}

    known = set(re.findall(r"--[a-z][a-z-]+", help_of_all_commands()))

    assert flags <= known


@pytest.mark.parametrize("document", [path for path in DOCUMENTS if path.parent.name == "docs"], ids=lambda path: path.name)
def test_every_command_is_run_by_the_test_that_the_line_above_it_names(document):
    claims = re.findall(r"^(.*)\n+```(?:bash|sh)$", document.read_text(), re.MULTILINE)

    unclaimed = [line for line in claims if not is_run(document, line)]

    assert not unclaimed


def is_run(document: Path, line: str) -> bool:
    claim = re.fullmatch(r"<!-- run by (tests/\S+\.py) -->", line)
    # A test that runs a page's commands reads them from the page.
    return claim is not None and (ROOT / claim[1]).is_file() and document.name in (ROOT / claim[1]).read_text()


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
