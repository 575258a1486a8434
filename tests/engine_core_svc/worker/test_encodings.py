"""The items that a worker was asked to encode, and its answers."""

import asyncio

import pytest

from tetrad.engine_core_svc.core.media import EncoderEvents
from tetrad.engine_core_svc.worker.in_flight import Encodings
from tetrad.services.errors import InternalError


@pytest.fixture
async def encodings():
    gave_up = asyncio.Event()
    encodings = Encodings(0.05, gave_up.set)
    encodings.gave_up = gave_up
    yield encodings
    encodings.close()


async def test_answers_are_taken_once_and_together(encodings):
    encodings.add("abc")
    assert encodings.take() is None

    error = InternalError("It failed.")
    encodings.note(EncoderEvents(["b"]))
    encodings.note(EncoderEvents(["a"], {"c": error}))

    assert encodings.take() == EncoderEvents(["b", "a"], {"c": error})
    assert encodings.take() is None


@pytest.mark.parametrize("events", [EncoderEvents(["b"]), EncoderEvents(failures={"b": InternalError("It failed.")})])
async def test_an_answer_that_was_not_asked_for_is_a_fault(encodings, events):
    encodings.add("a")

    with pytest.raises(InternalError, match="it answered item 'b', which it was not to encode") as fault:
        encodings.note(events)
    assert fault.value.reason == "WORKER_FAULT"


async def test_an_item_is_answered_once(encodings):
    encodings.add("a")
    encodings.note(EncoderEvents(["a"]))

    with pytest.raises(InternalError, match="'a'"):
        encodings.note(EncoderEvents(["a"]))


async def test_a_worker_that_does_not_answer_is_given_up(encodings):
    encodings.add("ab")
    encodings.note(EncoderEvents(["a"]))

    await asyncio.wait_for(encodings.gave_up.wait(), 10)


async def test_further_items_do_not_extend_the_wait_for_an_answer(encodings):
    async with asyncio.timeout(5):
        while not encodings.gave_up.is_set():
            encodings.add(["a"])
            await asyncio.sleep(0.001)


async def test_a_worker_that_has_answered_all_may_rest(encodings):
    encodings.add("a")
    encodings.note(EncoderEvents(["a"]))

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(encodings.gave_up.wait(), 0.2)
