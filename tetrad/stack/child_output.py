"""ChildOutput: forwards a child's stderr to ours, line by line.

Called by the supervised child. It holds back the line with which a Tetrad program reports why it exits: the supervisor reports
that line itself, and it should appear once. Knows lines, not processes.
"""

import asyncio

from tetrad.services.log import library_stderr
from tetrad.stack.stack_log import OnLine
from tetrad.stack.terminal_lines import Render


class ChildOutput:
    """The stderr of one child after the other.

    Args:
        program: how the child calls itself ("tetrad PROGRAM: ...").
        on_line: takes each line, too, without its end; those with which a program reports why it exits as well.
        render: makes the text to show of each line.
    """

    def __init__(self, program: str, on_line: OnLine | None = None, render: Render = str) -> None:
        self._render = render
        self._on_line = on_line
        self._own = f"tetrad {program}: "
        self.last_words = ""

    async def forward(self, stderr: asyncio.StreamReader) -> None:
        """Pass lines on until the child closes the stream; `last_words` is then its own last line, if it wrote one."""
        self.last_words = ""
        while line := await _read_line(stderr):
            if self._on_line is not None:
                self._on_line(line.rstrip("\n"))
            if line.startswith(self._own):
                self.last_words = line.removeprefix("tetrad ").strip()
            else:
                library_stderr.write(self._render(line))
                library_stderr.flush()


async def _read_line(stream: asyncio.StreamReader) -> str:
    """Return the next line, or a part of one that is longer than the reader's buffer; empty at the end."""
    try:
        data = await stream.readuntil()
    except asyncio.IncompleteReadError as error:
        data = error.partial
    except asyncio.LimitOverrunError as error:
        data = await stream.readexactly(error.consumed)
    return data.decode(errors="replace")
