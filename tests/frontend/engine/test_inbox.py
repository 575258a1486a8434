"""Steps that arrive faster than a frontend processes them."""

import asyncio

import pytest

from tetrad.frontend.engine.session_client import EngineInbox, Notice
from tetrad.frontend.request.steps import LogprobRows, RichUpdate, Step
from tetrad.services.errors import Unavailable


class FakeSession:
    """Brings what it is given, at once; then ends, or breaks."""

    def __init__(self, *messages, error=None):
        self.messages, self.error = list(messages), error

    async def receive(self):
        if self.messages:
            return self.messages.pop(0)
        if self.error:
            raise self.error
        return None


async def all_of(session):
    """Return what an inbox gives to one who comes when everything has arrived."""
    inbox = EngineInbox(session)
    while session.messages:  # noqa: ASYNC110 - the fake has no events
        await asyncio.sleep(0)
    taken = []
    try:
        while (message := await inbox.take()) is not None:
            taken.append(message)
    finally:
        await inbox.close()
    return taken


async def test_steps_that_lie_together_are_one_with_each_sequences_tokens_in_order():
    [step] = await all_of(FakeSession(Step(0, [(1, [5], None), (2, [6], None)]), Step(0, [(2, [7], None), (3, [8], None)])))

    assert step.updates == [(1, [5], None), (2, [6, 7], None), (3, [8], None)]


async def test_a_step_that_is_taken_when_it_comes_stays_alone():
    arrive = asyncio.Event()

    class SlowSession(FakeSession):
        async def receive(self):
            await arrive.wait()
            arrive.clear()
            return await super().receive()

    inbox = EngineInbox(SlowSession(Step(0, [(1, [5], None)]), Step(0, [(1, [6], None)])))
    taken = []
    for _ in range(2):
        arrive.set()
        taken.append(await inbox.take())
    await inbox.close()

    assert [step.updates for step in taken] == [[(1, [5], None)], [(1, [6], None)]]


async def test_a_first_and_a_last_step_keep_what_each_says():
    first = RichUpdate(num_cached_tokens=16, queued_time_s=0.5, num_preemptions=1)
    last = RichUpdate(finish_reason="stop", stop_reason=7)

    [step] = await all_of(FakeSession(Step(0, [(1, [5], first)]), Step(0, [(1, [6], None)]), Step(0, [(1, [7], last)])))

    [(_, ids, rich)] = step.updates
    assert ids == [5, 6, 7]
    assert (rich.finish_reason, rich.stop_reason) == ("stop", 7)
    assert (rich.num_cached_tokens, rich.queued_time_s, rich.num_preemptions) == (16, 0.5, 1)


@pytest.mark.parametrize(
    "rich",
    [
        RichUpdate(logprobs=LogprobRows([6], [0.0], [1], 1)),
        RichUpdate(error=Unavailable("gone")),
        RichUpdate(finish_reason="error"),
    ],
)
async def test_what_belongs_to_the_tokens_of_one_step_keeps_it_apart(rich):
    taken = await all_of(FakeSession(Step(0, [(1, [5], None)]), Step(0, [(1, [6], rich)]), Step(0, [(1, [7], None)])))

    assert [step.updates for step in taken] == [[(1, [5], None)], [(1, [6], rich)], [(1, [7], None)]]


async def test_an_end_that_no_token_brought_does_not_take_the_last_token_for_its_own():
    end = RichUpdate(finish_reason="stop")

    taken = await all_of(FakeSession(Step(0, [(1, [5], None)]), Step(0, [(1, [], end)])))

    assert [step.updates for step in taken] == [[(1, [5], None)], [(1, [], end)]]


async def test_order_is_kept_around_what_is_no_step():
    notice = Notice("DRAINING", "")

    taken = await all_of(FakeSession(Step(0, [(1, [5], None)]), notice, Step(0, [(1, [6], None)])))

    assert [type(message) for message in taken] == [Step, Notice, Step]


async def test_a_session_that_breaks_has_brought_what_came_before():
    inbox = EngineInbox(FakeSession(Step(0, [(1, [5], None)]), error=Unavailable("cut")))

    assert (await inbox.take()).updates == [(1, [5], None)]
    with pytest.raises(Unavailable, match="cut"):
        await inbox.take()


async def test_only_so_much_is_read_ahead():
    session = FakeSession(*[Notice("DRAINING", str(number)) for number in range(100)])
    inbox = EngineInbox(session)
    for _ in range(1000):
        await asyncio.sleep(0)

    assert len(session.messages) == 100 - 64

    taken = [await inbox.take() for _ in range(100)]
    assert [message.text for message in taken] == [str(number) for number in range(100)]
    await inbox.close()
