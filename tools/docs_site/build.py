"""Builds the site of the documents: copies the pages that mkdocs.yml lists, and runs mkdocs on them.

Run by `make docs`. A link to a page or a picture stays; a link to any other file of the repository becomes a link into the
repository at --source, or plain text where that is not given. `stage` needs no mkdocs, so tests call it.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent
CONFIG = FOLDER / "mkdocs.yml"
STAGED = ROOT / "build/docs-pages"
# The pages of the site, and the files that they show.
PAGES = ("*.md", "docs/*.md", "benchmarks/*.md")
ASSETS = ("docs/images/*.png", "docs/templates/*", "benchmarks/plots/*.png")
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)  # code, in which nothing is a link


def pages() -> list[Path]:
    """Return every page of the site, from the root of the repository."""
    return sorted(path.relative_to(ROOT) for pattern in PAGES for path in ROOT.glob(pattern))


def stage(target: Path, source: str = "") -> None:
    """Copy pages and pictures into an empty `target`, with links that lead somewhere there.

    Args:
        target: a directory, which is emptied first.
        source: the address of the repository's files; empty for plain text in place of links to them.
    """
    shutil.rmtree(target, ignore_errors=True)
    kept = {*pages(), *(path.relative_to(ROOT) for pattern in ASSETS for path in ROOT.glob(pattern))}
    for path in kept:
        copy = target / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            copy.write_text(_with_links((ROOT / path).read_text(), path, kept, source))
        else:
            shutil.copyfile(ROOT / path, copy)


def _with_links(text: str, page: Path, kept: set[Path], source: str) -> str:
    def link(match: re.Match[str]) -> str:
        mark, label, address = match.groups()
        path = address.partition("#")[0]
        if mark or not path or re.match(r"[a-z]+:", address):
            return match[0]
        aim = Path(os.path.normpath(page.parent / path))
        if aim in kept:
            return match[0]
        return f"[{label}]({source.rstrip('/')}/{aim.as_posix()})" if source else label

    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in _FENCE.split(text))


def main() -> None:
    """Build the site."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default="", help="address of the repository's files, for links to them")
    stage(STAGED, parser.parse_args().source)
    call = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "--config-file", str(CONFIG)]
    # The theme advertises its successor unless this is set.
    sys.exit(subprocess.run(call, check=False, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}).returncode)


if __name__ == "__main__":
    main()
