"""ChildOutput: forwards a child's stderr to the stderr of this process, line by line.

Called by the supervised child. Does not forward the line in which a Tetrad program reports why it exits: the supervisor
reports that line itself, and it should appear once. Knows lines, not processes.
"""

import asyncio

from tetrad.services.log import library_stderr
from tetrad.stack.stack_log import OnLine
from tetrad.stack.terminal_lines import Render


class ChildOutput:
    """Forwards the stderr of a child's processes, one process after the other.

    Args:
        program: the program name in the child's own lines ("tetrad PROGRAM: ...").
        on_line: called with each line without its line break, also with the line that reports why the program exits.
        render: returns the text to show for a line.
    """

    def __init__(self, program: str, on_line: OnLine | None = None, render: Render = str) -> None:
        self._render = render
        self._on_line = on_line
        self._own = f"tetrad {program}: "
        self.last_own_line = ""

    async def forward(self, stderr: asyncio.StreamReader) -> None:
        """Forward lines until the child closes the stream; `last_own_line` is then the program's last own line, or empty."""
        self.last_own_line = ""
        while line := await _read_line(stderr):
            if self._on_line is not None:
                self._on_line(line.rstrip("\n"))
            if line.startswith(self._own):
                self.last_own_line = line.removeprefix("tetrad ").strip()
            else:
                library_stderr.write(self._render(line))
                library_stderr.flush()


async def _read_line(stream: asyncio.StreamReader) -> str:
    """Return the next line, or a part of a line that is longer than the reader's buffer; empty at the end of the stream."""
    try:
        data = await stream.readuntil()
    except asyncio.IncompleteReadError as error:
        data = error.partial
    except asyncio.LimitOverrunError as error:
        data = await stream.readexactly(error.consumed)
    return data.decode(errors="replace")
