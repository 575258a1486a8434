"""Lines: the protocol of a measured engine in another process and environment: one JSON object a line, and one back.

Both ends are here. The engine's end uses the standard library only. Times are taken inside the engine's process, around the
work alone; between requests it blocks on a line, so that it takes no CPU time from other measurements.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol, Self

_ROOT = Path(__file__).parents[2]
_END_TIMEOUT_S = 20.0


class Engine(Protocol):
    """The requests to an engine. It chooses token ids itself: random ones, and then the most likely."""

    def decode(self, batch: int, steps: int, context: int) -> float:
        """Return the seconds of `steps` steps of `batch` rows, each step giving each row a token, from `context` tokens on."""

    def prefill(self, length: int) -> float:
        """Return the seconds from a prompt of `length` tokens that no cache has seen to the first token."""


def answer(engine: object, answers: Any) -> None:
    """Answer questions from stdin until it ends: each names a method of the engine, which returns seconds."""
    for line in sys.stdin:
        question = json.loads(line)
        seconds = getattr(engine, question.pop("ask"))(**question)
        answers.write(json.dumps({"seconds": seconds}) + "\n")
        answers.flush()


def take_stdout() -> Any:
    """Return a file for answers, and send whatever else is printed to stderr: libraries talk."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


class DrivenEngine:
    """An engine in a process of its own; usable as a context manager.

    Args:
        python: its interpreter.
        module: with a `main` that ends in `answer`.
        arguments: of that module.

    Attributes:
        pid: of the process.
    """

    def __init__(self, python: str | Path, module: str, *arguments: str) -> None:
        command = [str(python), "-m", module, *arguments]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        self._process = subprocess.Popen(
            command, cwd=_ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._module = module
        self.pid = self._process.pid

    def decode(self, batch: int, steps: int, context: int) -> float:
        """See Engine."""
        return self._ask(ask="decode", batch=batch, steps=steps, context=context)

    def prefill(self, length: int) -> float:
        """See Engine."""
        return self._ask(ask="prefill", length=length)

    def embed(self, texts: str, first: str) -> float:
        """Ask an engine that embeds; see sentence_transformers_driver.py."""
        return self._ask(ask="embed", texts=texts, first=first)

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _ask(self, **question: object) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._module} ended; its message is above.")
        return float(json.loads(line)["seconds"])
