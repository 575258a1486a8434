"""The streams of several ranks as one stream."""

import asyncio

import pytest

from tetrad.engine_core_svc.worker.group_stream import GroupStream
from tetrad.services.errors import Unavailable


class Refused:
    """The executor of a rank that cannot be reached."""

    lost, instance_id = None, ""

    async def start(self):
        raise Unavailable("There is no worker.")

    async def close(self):
        pass


class Slow(Refused):
    """The executor of a rank that answers the hello some turns of the event loop later."""

    def __init__(self):
        self.is_open = False

    async def start(self):
        for _ in range(10):
            await asyncio.sleep(0)
        self.is_open = True

    async def close(self):
        self.is_open = False


async def test_no_stream_is_opened_after_the_stream_of_another_rank_has_failed():
    slow = Slow()
    stream = GroupStream([lambda _: slow, lambda _: Refused()], lambda: None)

    with pytest.raises(Unavailable):
        await stream.start()
    for _ in range(20):
        await asyncio.sleep(0)

    assert not slow.is_open
