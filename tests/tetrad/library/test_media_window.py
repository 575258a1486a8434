"""MediaWindow: limits the requests with images in flight to the services' memory, and each request is answered."""

import asyncio

import pytest

from tetrad.library import media_window
from tetrad.library.media_window import MediaWindow
from tetrad.services.errors import InvalidRequest, Overloaded


class Services:
    """Services that take `most` requests at a time; a request ends when `end` is set."""

    def __init__(self, most: int) -> None:
        self.most, self.num_running, self.num_refused, self.peak = most, 0, 0, 0
        self.end, self.refused = asyncio.Event(), asyncio.Semaphore(0)

    async def run(self, number: int) -> int:
        await asyncio.sleep(0)
        if self.num_running == self.most:
            self.num_refused += 1
            self.refused.release()
            raise Overloaded("too many bytes")
        self.num_running += 1
        self.peak = max(self.peak, self.num_running)
        try:
            await self.end.wait()
        finally:
            self.num_running -= 1
        return number


async def test_refused_requests_are_made_again_and_the_window_narrows():
    services, window = Services(3), MediaWindow()
    work = asyncio.gather(*(window.run(lambda number=number: services.run(number)) for number in range(20)))
    for _ in range(17):
        await services.refused.acquire()

    services.end.set()

    assert await work == list(range(20))
    assert (services.peak, services.num_refused) == (3, 17)


async def test_a_request_that_is_refused_alone_fails():
    with pytest.raises(Overloaded):
        await MediaWindow().run(lambda: Services(0).run(0))


async def test_another_error_is_the_request_s_own(monkeypatch):
    monkeypatch.setattr(media_window, "_WIDEST", 1)
    window = MediaWindow()

    async def wrong() -> None:
        raise InvalidRequest("no image")

    with pytest.raises(InvalidRequest):
        await window.run(wrong)
    services = Services(1)
    services.end.set()
    assert await window.run(lambda: services.run(7)) == 7
