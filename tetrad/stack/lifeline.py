"""Lifeline: the pipe that ends the services of a local stack with the process that started them.

Services inherit the read end and end themselves when it breaks (services/process.py). Only the starting process holds the write
end, so that the kernel breaks the lifeline even if that process is killed.
"""

import os


class Lifeline:
    """An open pipe until it is closed.

    Attributes:
        read_end: the file descriptor that services inherit; -1: closed.
    """

    def __init__(self) -> None:
        self.read_end, self._write_end = os.pipe()

    def close(self) -> None:
        """Break the lifeline. Safe to call twice."""
        for fd in (self.read_end, self._write_end):
            if fd >= 0:
                os.close(fd)
        self.read_end = self._write_end = -1
