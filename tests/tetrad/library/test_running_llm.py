"""RunningLLM ends its services when it is collected, on whatever thread that happens."""

import asyncio
import threading

from tetrad.library.running_llm import RunningLLM


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
