"""Filler: advances grammar states by the sampled tokens and computes their next masks, in its own thread.

One batch at a time. llguidance's threads run the matchers without the interpreter's lock: 16 masks take about 0.3 ms together,
but a hostile grammar may take hundreds of milliseconds for one; meanwhile the event loop serves the other requests.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Protocol

import numpy as np
from llguidance import LLExecutor
from llguidance.numpy import fill_next_token_bitmask_par

from tetrad.engine_core_svc.structured_output.grammar_state import GrammarState
from tetrad.services.errors import InternalError
from tetrad.services.log import get_logger


@dataclass(frozen=True, slots=True)
class Advance:
    """The new tokens of a request, and the drafts to verify after them."""

    state: GrammarState
    token_ids: Sequence[int]
    draft_ids: Sequence[int] = ()


Advances = Sequence[Advance]

log = get_logger()


class Filler(Protocol):
    """Processes batches of advances, and calls back on the caller's thread."""

    def submit(self, advances: Advances, on_done: Callable[[], None]) -> None:
        """Advance each state by its tokens, set its next mask and those after its drafts, then call `on_done`."""

    def close(self) -> None:
        """Accept no more batches."""


class InlineFiller:
    """Processes batches on the calling thread, for tests and for states of resumed requests."""

    def __init__(self, num_threads: int = 1) -> None:
        self._num_threads = num_threads

    @cached_property
    def _executor(self) -> LLExecutor:
        return LLExecutor(self._num_threads)

    def submit(self, advances: Advances, on_done: Callable[[], None]) -> None:
        """See Filler; return when the batch is done."""
        self.run(advances)
        on_done()

    def close(self) -> None:
        """Do nothing: there is no thread."""

    def run(self, advances: Advances) -> None:
        """Process a batch on this thread."""
        for each in advances:
            each.state.advance(each.token_ids)
        ahead = [each.state.look_ahead(each.draft_ids) for each in advances]
        states = chain((each.state for each in advances), *ahead)
        self._set_masks([state for state in states if state.needs_mask])
        for each, later in zip(advances, ahead, strict=True):
            each.state.note_drafts(each.draft_ids, later)

    def _set_masks(self, states: Sequence[GrammarState]) -> None:
        if not states:
            return
        num_words = (states[0].vocabulary.tokens.vocab_size + 31) // 32
        masks = np.empty((len(states), num_words), np.int32)
        fill_next_token_bitmask_par(self._executor, [(state.matcher, row) for row, state in enumerate(states)], masks)
        words = masks.view("<u4")
        for row, state in enumerate(states):
            state.set_mask(words[row, : state.vocabulary.num_words])


class ThreadFiller:
    """Processes batches in its own thread; made and used on the event loop.

    Args:
        num_threads: number of llguidance's threads, for the masks of one batch.
    """

    def __init__(self, num_threads: int) -> None:
        self._inline = InlineFiller(num_threads)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar-filler")

    def submit(self, advances: Advances, on_done: Callable[[], None]) -> None:
        """See Filler; `on_done` is called on the event loop."""
        loop = asyncio.get_running_loop()

        def work() -> None:
            try:
                self._inline.run(advances)
            except BaseException as error:  # a panic in the library is not an Exception; requests would wait for ever
                log.exception("grammar.filler_failed")
                for each in advances:
                    each.state.error = InternalError(f"The constraint could not be followed: {error}.")
            with contextlib.suppress(RuntimeError):  # the loop is closed: the service has stopped
                loop.call_soon_threadsafe(on_done)

        self._thread.submit(work)

    def close(self) -> None:
        """Accept no more batches; do not wait for the present one."""
        self._thread.shutdown(wait=False, cancel_futures=True)
