"""Outputs of calls with many sequences: beside those of other calls, in parts, in the order of each sequence."""

import asyncio

import pytest

from tetrad.frontend.llm.large_calls import LargeCalls
from tetrad.frontend.request.steps import RichUpdate, Step

SMALL, LARGE = range(1, 4), range(100, 200)
"""Handles of three calls with one sequence each, and of one call with a hundred."""


def step_of(*handles, token=7, rich=None):
    return Step(0, [(handle, [token], rich) for handle in handles])


def call_of(handle):
    return handle if handle in SMALL else "large" if handle in LARGE else None


class Sink:
    """Takes parts of steps, while it is open."""

    def __init__(self):
        self.parts, self.is_open, self.failure = [], asyncio.Event(), None
        self.large_calls = LargeCalls(self.process, call_of)

    async def process(self, step):
        await self.is_open.wait()
        if self.failure is not None:
            raise self.failure
        self.parts.append(step.updates)

    @property
    def tokens(self):
        """Handle -> its tokens in their order."""
        found = {}
        for handle, ids, _ in (update for part in self.parts for update in part):
            found.setdefault(handle, []).extend(ids)
        return found


async def test_a_step_without_a_large_call_stays_as_it_is():
    step = step_of(*SMALL)

    assert await Sink().large_calls.take_from(step) is step


async def test_many_small_calls_stay_together():
    sink, step = Sink(), step_of(*range(1000, 1300))
    sink.large_calls = LargeCalls(sink.process, lambda handle: handle)

    assert await sink.large_calls.take_from(step) is step


async def test_tokens_of_other_calls_do_not_wait_for_those_of_a_large_one():
    sink = Sink()

    rest = await sink.large_calls.take_from(step_of(1, *LARGE, 2))

    assert [handle for handle, _, _ in rest.updates] == [1, 2]
    assert not sink.parts
    sink.is_open.set()
    await sink.large_calls.settle()
    assert sink.tokens == {handle: [7] for handle in LARGE}
    assert max(map(len, sink.parts)) == 16


async def test_a_part_waits_while_steps_of_other_calls_arrive():
    sink = Sink()
    sink.is_open.set()
    for _ in range(5):
        await sink.large_calls.take_from(step_of(1, *LARGE))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    assert len(sink.parts) == 1
    await sink.large_calls.settle()
    assert sink.tokens == {handle: [7] * 5 for handle in LARGE}


async def test_tokens_stay_behind_earlier_ones_of_their_sequence_when_few_are_left():
    sink = Sink()
    await sink.large_calls.take_from(step_of(*LARGE))
    await asyncio.sleep(0)

    rest = await sink.large_calls.take_from(step_of(1, 100, 150, token=8))

    assert [handle for handle, _, _ in rest.updates] == [1]
    sink.is_open.set()
    await sink.large_calls.settle()
    assert sink.tokens[100] == sink.tokens[150] == [7, 8]


async def test_later_steps_are_joined_while_they_wait():
    sink = Sink()
    for token in (7, 8, 9):
        await sink.large_calls.take_from(step_of(*LARGE, token=token))
        await asyncio.sleep(0)

    sink.is_open.set()
    await sink.large_calls.settle()

    assert len(sink.parts) == 14, "seven of the first step, seven of the two others"
    assert sink.tokens == {handle: [7, 8, 9] for handle in LARGE}


async def test_an_engine_waits_when_too_many_steps_cannot_be_joined():
    sink, errors = Sink(), RichUpdate(error=RuntimeError())  # which belong to the tokens of one step
    for _ in range(65):
        await sink.large_calls.take_from(step_of(*LARGE, rich=errors))
        await asyncio.sleep(0)

    further = asyncio.create_task(sink.large_calls.take_from(step_of(*LARGE, rich=errors)))
    await asyncio.sleep(0)
    assert not further.done()

    sink.is_open.set()
    await further
    await sink.large_calls.settle()
    assert sum(map(len, sink.parts)) == 66 * len(LARGE)


async def test_what_fails_is_raised_at_the_next_step_and_at_the_end():
    sink = Sink()
    sink.is_open.set()
    for follow in (lambda: sink.large_calls.take_from(step_of(*LARGE)), sink.large_calls.settle):
        sink.failure = ZeroDivisionError()
        await sink.large_calls.take_from(step_of(*LARGE))
        for _ in range(3):
            await asyncio.sleep(0)

        with pytest.raises(ZeroDivisionError):
            await follow()
    sink.failure = None
    await sink.large_calls.take_from(step_of(*LARGE))
    await sink.large_calls.settle()
    assert sink.tokens == {handle: [7] for handle in LARGE}


async def test_nothing_is_processed_any_more_for_a_caller_that_is_cancelled():
    sink = Sink()

    async def serve():
        try:
            await sink.large_calls.take_from(step_of(*LARGE))
            await asyncio.Event().wait()
        finally:
            await sink.large_calls.settle()

    serving = asyncio.create_task(serve())
    await asyncio.sleep(0)
    serving.cancel()

    with pytest.raises(asyncio.CancelledError):
        await serving
    assert not sink.parts
