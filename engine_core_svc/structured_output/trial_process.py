"""`python -m tetrad.engine_core_svc.structured_output.trial_process MEMORY_BYTES ALARM_S`: tries constraints, one at a time.

A constraint is untrusted, and llguidance compiles it in native code: a chain of a few thousand rules overflows its stack, and
some grammars take minutes. A crash of this process does no harm. A constraint that compiles here is compiled again in the
engine core, with a larger stack. The vocabulary is sent first, then languages: see services/sandbox/process.py.
"""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tetrad.engine_core_svc.structured_output.compiled import STACK_BYTES, CompiledGrammar
from tetrad.engine_core_svc.structured_output.constraint import Constraint, Language
from tetrad.engine_core_svc.structured_output.filler import Advance, InlineFiller
from tetrad.engine_core_svc.structured_output.grammar_state import GrammarState
from tetrad.engine_core_svc.structured_output.vocabulary import Vocabulary, ids_in
from tetrad.services.errors import TetradError
from tetrad.services.sandbox.process import serve_frames

_STACK_BYTES = STACK_BYTES // 2
"""Stack size of the thread that compiles: half of that of the engine core's thread."""
_NUM_STEPS = 8


def attempt(language: Language, vocabulary: Vocabulary) -> str | None:
    """Compile a language and follow it for a few tokens; return the reason if that fails, otherwise None."""
    try:
        state = GrammarState(Constraint(language), CompiledGrammar(language, vocabulary))
        filler = InlineFiller()
        for _ in range(_NUM_STEPS):
            if state.error is not None:
                return state.error.message
            if state.is_complete:
                break
            filler.run([Advance(state, [ids_in(state.mask)[-1]])])
    except TetradError as error:
        return error.message
    except MemoryError:
        return "The constraint needs more memory than it may have."
    return None


def prepare(vocabulary_json: bytes) -> Callable[[bytes], bytes]:
    """Return a function that compiles a language and answers with {"error"}."""
    vocabulary = Vocabulary(**json.loads(vocabulary_json))
    threading.stack_size(_STACK_BYTES)

    def answer(language_json: bytes) -> bytes:
        with ThreadPoolExecutor(1) as thread:  # threads have the small stack
            error = thread.submit(attempt, Language(**json.loads(language_json)), vocabulary).result()
        return json.dumps({"error": error}).encode()

    return answer


if __name__ == "__main__":
    serve_frames(prepare)
