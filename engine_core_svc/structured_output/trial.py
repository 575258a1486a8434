"""Trial: compiles constraints in a sandboxed process first; trial_process.py runs in that process."""

import dataclasses
import json

from tetrad.engine_core_svc.structured_output.constraint import FIELD, Language, refusal
from tetrad.engine_core_svc.structured_output.vocabulary import Vocabulary
from tetrad.services.errors import InvalidRequest
from tetrad.services.sandbox.sandbox import Sandbox, SandboxDied, SandboxTimeout

_MEMORY_BYTES = 3 << 30


class TooSlow(InvalidRequest):
    """The language takes longer to compile than the trial may take."""


class Trial:
    """Compiles languages on trial. Used by one thread; `interrupt` may be called by another thread.

    Args:
        timeout_s: maximum seconds for one language.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._vocabulary: Vocabulary | None = None
        module = f"{__name__}_process"
        self._sandbox = Sandbox(module, memory_bytes=_MEMORY_BYTES, timeout_s=timeout_s, hello=self._hello)

    def attempt(self, language: Language, vocabulary: Vocabulary) -> None:
        """Compile and follow a language in the other process.

        Raises:
            InvalidRequest: the language cannot be compiled, or takes too much memory; TooSlow if it takes too much time.
            InternalError: the process cannot be started.
        """
        self._vocabulary = vocabulary
        try:
            reply = self._sandbox.exchange(json.dumps(dataclasses.asdict(language)).encode())
        except SandboxTimeout:
            text = f"{language.kind} takes longer than {self._timeout_s:g} s to compile; make it smaller."
            raise TooSlow(text, field=FIELD) from None
        except SandboxDied:
            raise refusal(f"{language.kind} is too deeply nested or too large to compile.") from None
        error: str | None = json.loads(reply)["error"]
        if error is not None:
            raise refusal(error)

    def interrupt(self) -> None:
        """Make the present attempt, and every later one, fail."""
        self._sandbox.interrupt()

    def close(self) -> None:
        """End the process, if there is one."""
        self._sandbox.close()

    def _hello(self) -> bytes:
        assert self._vocabulary is not None
        return json.dumps(self._vocabulary.source).encode()
