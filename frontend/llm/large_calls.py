"""LargeCalls: processes the outputs of calls with many sequences in parts, concurrently with the outputs of other calls.

Used by the output processor. One engine step may contain tokens of hundreds of sequences of one client call (n outputs, many
prompts): tokens of other calls do not wait for these. While a part is processed, the engine's later steps are merged, so that
processing a large call does not fall further behind. The updates of each sequence stay in order. Knows no requests and no text.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import replace
from itertools import compress
from operator import not_

from tetrad.frontend.request.steps import Step

_MOST_TOGETHER = 16
"""Maximum number of one call's updates that are processed with those of other calls; also the size of a part, about 1 ms."""
_CAPACITY = 64
"""Maximum number of waiting steps that could not be merged; at this number the engine's next step waits, too."""
_COMPANY_S = 0.1
"""Seconds after an output of another call for which parts give way to the engine's next steps."""
_PAUSE_S = 0.0003
"""Seconds in which a step that has arrived is read. A part follows once none was."""
_MOST_PAUSES = 10
"""Maximum number of pauses between two parts."""


class LargeCalls:
    """The outputs of one engine's large calls.

    Args:
        process: processes a part of a step.
        call_of: returns the call of a handle; None: the call has ended.
    """

    def __init__(self, process: Callable[[Step], Awaitable[None]], call_of: Callable[[int], Hashable | None]) -> None:
        self._process, self._call_of = process, call_of
        self._waiting: deque[Step] = deque()
        self._handles: set[int] = set()  # handles with waiting updates
        self._task: asyncio.Task[None] | None = None
        self._has_room = asyncio.Event()
        self._num_steps, self._last_company = 0, 0.0  # steps taken, and time of the last output of another call

    async def take_from(self, step: Step) -> Step:
        """Queue updates of large calls, and updates whose handle has waiting ones; return the rest of the step."""
        self._num_steps += 1
        if len(step.updates) <= _MOST_TOGETHER and not self._handles:
            return step
        calls = [self._call_of(handle) for handle, _, _ in step.updates]
        counts = Counter(calls)
        large = [
            call is not None and (counts[call] > _MOST_TOGETHER or handle in self._handles)
            for call, (handle, _, _) in zip(calls, step.updates, strict=True)
        ]
        if not any(large):
            return step
        await self._add(replace(step, updates=list(compress(step.updates, large))))
        if not all(large):
            self._last_company = time.monotonic()
        return replace(step, updates=list(compress(step.updates, map(not_, large))))

    async def settle(self) -> None:
        """Wait until all queued updates are processed, unless the caller's task is cancelled; raises a failed part's error."""
        task, self._task = self._task, None
        if task is None:
            return
        if (caller := asyncio.current_task()) is not None and caller.cancelling():
            task.cancel()
        try:
            await task
        finally:
            task.cancel()
            self._waiting.clear()
            self._handles.clear()

    async def _add(self, step: Step) -> None:
        if self._task is not None and self._task.done():
            await self.settle()  # raises the error that ended the task
        self._handles.update(handle for handle, _, _ in step.updates)
        if not self._waiting or not self._waiting[-1].try_join(step):
            self._waiting.append(step)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="outputs of large calls")
        while len(self._waiting) > _CAPACITY and not self._task.done():
            self._has_room.clear()
            await self._has_room.wait()

    async def _run(self) -> None:
        try:
            while self._waiting:
                step = self._waiting.popleft()
                self._has_room.set()
                for start in range(0, len(step.updates), _MOST_TOGETHER):
                    await self._process(replace(step, updates=step.updates[start : start + _MOST_TOGETHER]))
                    await self._give_way()
                self._handles = {handle for waiting in self._waiting for handle, _, _ in waiting.updates}
        finally:
            self._has_room.set()

    async def _give_way(self) -> None:
        """Let steps that have arrived be read and processed first, if other calls have outputs in them."""
        await asyncio.sleep(0)
        for _ in range(_MOST_PAUSES):
            num_before = self._num_steps
            if time.monotonic() - self._last_company > _COMPANY_S:
                return
            await asyncio.sleep(_PAUSE_S)
            if self._num_steps == num_before:
                return
