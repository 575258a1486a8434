"""Compiler: compiles languages to grammars, each once, and caches the newest by a hash of the language.

Used on the event loop; a thread compiles, and advances the states of requests that resume. A language is compiled in another
process first (trial.py), so that the compilation in this process is known to succeed in a limited time. One that takes long is
compiled in a second thread, with a process of its own: it delays the others by a short trial only.
"""

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from tetrad.engine_core_svc.structured_output.compiled import STACK_BYTES, CompiledGrammar, check_size
from tetrad.engine_core_svc.structured_output.constraint import Language
from tetrad.engine_core_svc.structured_output.filler import Advance, InlineFiller
from tetrad.engine_core_svc.structured_output.grammar_state import GrammarState
from tetrad.engine_core_svc.structured_output.trial import TooSlow
from tetrad.engine_core_svc.structured_output.vocabulary import Vocabulary


class TrialPort(Protocol):
    """The interface for trial compilations, called by the compiler's thread; see Trial."""

    def attempt(self, language: Language, vocabulary: Vocabulary) -> None:
        """Compile and follow a language. Raises InvalidRequest if that fails, TooSlow if it takes too much time."""

    def interrupt(self) -> None:
        """Make the present attempt, and every later one, fail. Called on the event loop."""

    def close(self) -> None:
        """End the trial's process."""


@dataclass(slots=True, eq=False)
class _Compilation:
    """A compilation in progress, and the number of callers that wait for it."""

    task: asyncio.Task[CompiledGrammar]
    num_waiting: int = 0


class GrammarCompiler:
    """Compiles grammars, and caches them.

    Args:
        vocabulary: returns the model's vocabulary, the same each time; if it raises, each request gets that error.
        trial: compiles each language first; closed with this compiler.
        on_compiled: called with the seconds of each compilation, including its wait for the thread.
        patient: compiles the languages that are too slow for `trial`; closed with this compiler. None: these are refused.
        cache_size: maximum number of cached grammars.
    """

    def __init__(
        self,
        vocabulary: Callable[[], Awaitable[Vocabulary]],
        trial: TrialPort,
        on_compiled: Callable[[float], None] = lambda _: None,
        *,
        patient: TrialPort | None = None,
        cache_size: int = 128,
    ) -> None:
        self._vocabulary = vocabulary
        self._quick = _Lane(trial)
        self._slow = None if patient is None else _Lane(patient)
        self._on_compiled = on_compiled
        self._cache_size = cache_size
        self._cache: OrderedDict[bytes, CompiledGrammar] = OrderedDict()
        self._compiling: dict[bytes, _Compilation] = {}
        self._filler = InlineFiller()

    async def compile(self, language: Language) -> CompiledGrammar:
        """Return a language's grammar. If all callers that wait for it are cancelled, its compilation is cancelled, too.

        Raises:
            InvalidRequest: the language cannot be used, or takes too long.
            Unsupported: there is no tokenizer, or it cannot be used.
            Unavailable: the tokenizer cannot be reached.
        """
        key = language.digest()
        found = self._cache.get(key)
        if found is not None:
            self._cache.move_to_end(key)
            return found
        running = self._compiling.get(key) or self._start(key, language)
        running.num_waiting += 1
        try:
            # The end of one request must not end the compilation for others that wait for the same grammar.
            return await asyncio.shield(running.task)
        finally:
            running.num_waiting -= 1
            if not running.num_waiting and not running.task.done():
                self._forget(key, running)
                running.task.cancel()

    async def resume(self, state: GrammarState, token_ids: Sequence[int]) -> None:
        """Advance a new state by the tokens that its request already has, and compute its next mask."""
        await asyncio.get_running_loop().run_in_executor(self._quick.thread, self._filler.run, [Advance(state, token_ids)])

    async def close(self) -> None:
        """Cancel all compilations, and end the processes of the trials."""
        tasks = [running.task for running in self._compiling.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(lane.close() for lane in (self._quick, self._slow) if lane is not None))

    def _start(self, key: bytes, language: Language) -> _Compilation:
        task = asyncio.create_task(self._compile(key, language), name="grammar.compile")
        running = self._compiling[key] = _Compilation(task)
        task.add_done_callback(lambda _: self._forget(key, running))
        return running

    async def _compile(self, key: bytes, language: Language) -> CompiledGrammar:
        vocabulary = await self._vocabulary()
        started = time.perf_counter()
        try:
            grammar = await self._quick.compile(language, vocabulary)
        except TooSlow:
            if self._slow is None:
                raise
            grammar = await self._slow.compile(language, vocabulary)
        self._cache[key] = grammar
        self._on_compiled(time.perf_counter() - started)
        if len(self._cache) > self._cache_size:
            self._cache.popitem(last=False)
        return grammar

    def _forget(self, key: bytes, running: _Compilation) -> None:
        if self._compiling.get(key) is running:  # else it was cancelled, and another request may have started it again
            del self._compiling[key]
        if running.task.done() and not running.task.cancelled():
            running.task.exception()  # mark it as retrieved: the waiting requests have got it, or have ended


class _Lane:
    """A thread that compiles languages one after another, each on trial first."""

    def __init__(self, trial: TrialPort) -> None:
        self._trial = trial
        self.thread = _thread_with_stack()

    async def compile(self, language: Language, vocabulary: Vocabulary) -> CompiledGrammar:
        return await asyncio.get_running_loop().run_in_executor(self.thread, self._try_and_compile, language, vocabulary)

    async def close(self) -> None:
        self._trial.interrupt()
        await asyncio.get_running_loop().run_in_executor(self.thread, self._trial.close)
        self.thread.shutdown(wait=False)

    def _try_and_compile(self, language: Language, vocabulary: Vocabulary) -> CompiledGrammar:
        check_size(language)
        self._trial.attempt(language, vocabulary)
        return CompiledGrammar(language, vocabulary)


def _thread_with_stack() -> ThreadPoolExecutor:
    """Return an executor of one thread, which has a stack of STACK_BYTES."""
    executor = ThreadPoolExecutor(1, thread_name_prefix="grammar-compiler")
    default = threading.stack_size(STACK_BYTES)
    try:
        executor.submit(int)  # the thread starts with the first task
    finally:
        threading.stack_size(default)
    return executor
