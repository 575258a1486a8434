"""ChildOutput: passes what a child writes to stderr on to ours, line by line.

Called by the child that is supervised. Holds back the line with which a Tetrad program says why it ends: who gives the child up
tells it, and nobody wants to read it twice. Knows lines, not processes.
"""

import asyncio

from tetrad.services.log import library_stderr


class ChildOutput:
    """The stderr of one child after the other.

    Args:
        program: how the child calls itself ("tetrad PROGRAM: ...").
    """

    def __init__(self, program: str) -> None:
        self._own = f"tetrad {program}: "
        self.last_words = ""

    async def forward(self, stderr: asyncio.StreamReader) -> None:
        """Pass lines on until the child closes the stream; `last_words` is then its own last line, if it wrote one."""
        self.last_words = ""
        while line := await _read_line(stderr):
            if line.startswith(self._own):
                self.last_words = line.removeprefix("tetrad ").strip()
            else:
                library_stderr.write(line)
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
