"""Command line: an argument parser whose errors are one line, for the services and for the `tetrad` command."""

import argparse
import difflib
from typing import NoReturn


class CommandLineParser(argparse.ArgumentParser):
    """Answers a wrong command line with one line, which names the flag that was probably meant."""

    def error(self, message: str) -> NoReturn:
        """End the process with exit code 2."""
        flags = [flag for action in self._actions for flag in action.option_strings]
        unknown = [word.split("=")[0] for word in message.split() if word.startswith("-")]
        meant = [near for word in unknown for near in difflib.get_close_matches(word, flags, n=1)]
        hint = f"did you mean {' '.join(meant)}? " if meant and message.startswith("unrecognized") else ""
        self.exit(2, f"{self.prog}: {message}; {hint}`{self.prog} --help` lists the options\n")
