"""Names that stand for addresses, and requests to the services that are found there."""

import asyncio
import socket

from tests.frontend.fakes import TEXT
from tetrad.frontend.request.sampling_params import SamplingParams

LONG = TEXT * 3
TIMEOUT_S = 10


class Names:
    """Replaces the system's look-up of names: name -> addresses; other names are looked up as before."""

    def __init__(self, monkeypatch):
        self.addresses = {}
        self._system = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self._lookup)

    def _lookup(self, host, port, *args, **kwargs):
        if host.endswith(".test") and not self.addresses.get(host):
            raise socket.gaierror(-2, "Name or service not known")
        return [each for name in self.addresses.get(host, [host]) for each in self._system(name, port, *args, **kwargs)]


async def until(condition):
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 - no event marks every such change
            await asyncio.sleep(0.005)


def start(llm, request_id, *, rank=None, **params):
    """Start a request; return the task of its text."""

    async def collect():
        fields = {"max_tokens": 60} | params
        stream = llm.generate([104, 105], SamplingParams(**fields), request_id, data_parallel_rank=rank)
        return [output async for output in stream][-1].outputs[0].text

    return asyncio.create_task(collect())
