"""Terminal: reads the messages of a chat, with a persistent history and messages of several lines, and prints the answers."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from tetrad.services.errors import InvalidRequest

_QUOTES = '"""'
_MAX_LINES = 1000


class Terminal:
    """The source of the messages and the place of the answers.

    Args:
        history: file of the typed lines, for the arrow keys; used if stdin and stdout are a terminal.
    """

    def __init__(self, history: Path) -> None:
        self._history = history
        self.is_interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self._in_reasoning = False

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Use the history inside the context, and save it at the end; without a terminal or readline there is no history."""
        if not self.is_interactive:
            yield
            return
        try:
            import readline
        except ImportError:
            yield
            return
        readline.set_history_length(_MAX_LINES)
        with contextlib.suppress(OSError):
            readline.read_history_file(self._history)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                self._history.parent.mkdir(parents=True, exist_ok=True)
                self._history.touch(mode=0o600)
                readline.write_history_file(self._history)

    def read_message(self) -> str | None:
        """Return the next message; None at the end of the input."""
        try:
            line = self._read("> ")
            if not line.strip().startswith(_QUOTES):
                return line.strip()
            lines = [line.strip().removeprefix(_QUOTES)]
            while not lines[-1].rstrip().endswith(_QUOTES):
                lines.append(self._read(". "))
        except EOFError:
            return None
        lines[-1] = lines[-1].rstrip().removesuffix(_QUOTES)
        return "\n".join(lines).strip()

    def note(self, text: str) -> None:
        """Print a remark that does not belong to the chat; only on a terminal."""
        if self.is_interactive:
            print(f"\x1b[2m{text}\x1b[0m")

    def show(self, text: str) -> None:
        """Print a piece of an answer."""
        print(f"{self._reasoning_end()}{text}", end="", flush=True)

    def show_reasoning(self, text: str) -> None:
        """Print a piece of the reasoning before an answer; only on a terminal, as a pipe gets the answer alone."""
        if self.is_interactive:
            self._in_reasoning = True
            print(f"\x1b[2m{text}\x1b[0m", end="", flush=True)

    def end_answer(self) -> None:
        """Print the line break after an answer, which may also have ended in its reasoning."""
        self._in_reasoning = False
        print()

    def _reasoning_end(self) -> str:
        was_in_reasoning, self._in_reasoning = self._in_reasoning, False
        return "\n\n" if was_in_reasoning else ""

    def _read(self, prompt: str) -> str:
        try:
            return input(prompt if self.is_interactive else "")
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"The message is not {error.encoding}.") from error
