"""Lines: the protocol of a measured engine in another process and environment: one JSON object per line, in both directions.

Both ends are here. The engine's end uses the standard library only. Times are measured inside the engine's process, around the
work alone. Between requests the engine blocks on reading a line, so that it takes no CPU time from other measurements.
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
    """The requests to an engine. The engine chooses token ids itself: random prompts, then the most likely tokens."""

    def decode(self, batch: int, steps: int, context: int) -> float:
        """Return the seconds of `steps` steps after `context` tokens; each step generates one token in each of `batch` rows."""

    def prefill(self, length: int) -> float:
        """Return the seconds from a new prompt of `length` tokens, which no cache has, to its first token."""


def answer(engine: object, answers: Any) -> None:
    """Answer requests from stdin until it ends: each request names a method of the engine, which returns seconds."""
    for line in sys.stdin:
        question = json.loads(line)
        seconds = getattr(engine, question.pop("ask"))(**question)
        answers.write(json.dumps({"seconds": seconds}) + "\n")
        answers.flush()


def take_stdout() -> Any:
    """Return a file for answers, and redirect stdout to stderr, because libraries print text."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


class DrivenEngine:
    """An engine in a separate process; a context manager.

    Args:
        python: interpreter of the process.
        module: module whose main program calls `answer`.
        arguments: arguments of the module.

    Attributes:
        pid: id of the process.
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
        """Return the seconds in which an embedding engine embeds texts; see sentence_transformers_driver.py."""
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
