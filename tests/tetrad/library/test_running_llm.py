"""RunningLLM ends its services when it is collected, on whatever thread that happens."""

import asyncio
import threading

import pytest

from tetrad.library.running_llm import RunningLLM
from tetrad.services.errors import Unavailable


def test_an_object_that_is_collected_on_an_event_loop_does_not_wait_there_for_its_end():
    ended = threading.Event()

    class Services:
        async def start(self) -> None:
            pass

        async def close(self) -> None:
            await asyncio.sleep(0)
            ended.set()

    kept = [RunningLLM(Services)]
    loop = kept[0].loop

    async def drop() -> None:
        kept.clear()

    loop.run(drop())

    assert ended.wait(5)
    loop.join(5)
    loop.close()  # once more changes nothing


def test_a_closed_object_refuses_work_in_a_sentence():
    class Services:
        async def start(self) -> None:
            pass

        async def close(self) -> None:
            pass

    running = RunningLLM(Services)
    running.close()

    with pytest.raises(Unavailable, match=r"This LLM was closed\."):
        running.run(asyncio.sleep(0))
