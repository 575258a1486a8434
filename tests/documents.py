"""Documents: the pages of this repository as tests read them: their text, their sections and their blocks of code."""

import re
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[1]
COMMANDS = ("bash", "sh")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SECTION = re.compile(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


class Page:
    """A page, or a section of one.

    Args:
        text: in Markdown.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    @classmethod
    def of(cls, path: str) -> Self:
        """Return the page at a path from the root of the repository."""
        return cls((ROOT / path).read_text())

    def section(self, heading: str) -> "Page":
        """Return what stands under a heading of the second level."""
        return Page(dict(_SECTION.findall(self.text))[heading])

    def blocks(self, *languages: str) -> list[str]:
        """Return the blocks in these languages, in their order; none given: the blocks of commands."""
        return [text for language, text in _BLOCK.findall(self.text) if language in (languages or COMMANDS)]

    def block(self, *words: str, language: str = "") -> str:
        """Return the one block in a language, of commands if none is given, that has all of these words."""
        blocks = self.blocks(language) if language else self.blocks()
        (found,) = [text for text in blocks if all(word in text for word in words)]
        return found
