"""Generator: sends a dataset's requests to one server, a fixed number at a time or at a rate, until all have ended.

Used by `tetrad bench` for each level of a sweep. Requests arrive at their times, however long earlier ones take;
only the limit of requests in flight delays them.
"""

import asyncio
import json
import random
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tetrad.cli.load.datasets import Dataset
from tetrad.cli.load.draft_counts import DraftCounts
from tetrad.cli.load.stream_client import StreamClient
from tetrad.library.aside import run_aside


@dataclass(frozen=True)
class Server:
    """The server under load.

    Args:
        url: URL of the server, without "/v1" at the end.
        model: model name in the requests.
        api_key: sent with every request. None: no key.
        trust: trusted certificates of an https URL. None: the connection is not encrypted.
        max_model_len: maximum length of prompt plus output, in tokens. None: the server does not report it.
    """

    url: str
    model: str
    api_key: str | None = None
    trust: ssl.SSLContext | None = None
    max_model_len: int | None = None


@dataclass(frozen=True)
class Level:
    """The intensity of a load.

    Args:
        concurrency: maximum number of requests in flight. None: no limit.
        request_rate: mean number of arrivals per second. None: a request is sent as soon as the limit allows.
        burstiness: shape of the gamma distribution of the gaps between arrivals; 1 is a Poisson process.
    """

    concurrency: int | None
    request_rate: float | None = None
    burstiness: float = 1.0

    def __str__(self) -> str:
        limit = [] if self.concurrency is None else [f"concurrency {self.concurrency}"]
        rate = [] if self.request_rate is None else [f"{self.request_rate:g} req/s"]
        return ", ".join([*rate, *limit])


@dataclass(frozen=True)
class Load:
    """The load to send.

    Args:
        server: the server that receives the load.
        dataset: source of the requests.
        level: intensity of the load.
        num_requests: total number of requests.
        timeout_s: maximum seconds of one request.
        seed: seed of the requests and of their arrivals.
    """

    server: Server
    dataset: Dataset
    level: Level
    num_requests: int
    timeout_s: float
    seed: int = 0


@dataclass
class Measured:
    """The results of a load. Times are in seconds of the monotonic clock.

    Attributes:
        duration_s: seconds from the start to the end of the last request.
    """

    began_at: float = 0.0
    ended_at: float = 0.0
    duration_s: float = 0.0
    clients: list[StreamClient] = field(default_factory=list)
    drafts: DraftCounts = field(default_factory=DraftCounts)


OnEnd = Callable[[], None]


async def run_load(load: Load, on_end: OnEnd = lambda: None) -> Measured:
    """Send the load and return its results; failed requests have their errors. Call `on_end` at the end of each request."""
    # Beside the event loop: many long requests take minutes to make, and a signal would have to wait for them.
    requests = await run_aside(lambda: list(_requests(load)))
    # Taken before a task exists: the end of thousands of tasks that wait for it would take minutes.
    gate = asyncio.Semaphore(load.level.concurrency or len(requests))
    measured = Measured(began_at=time.monotonic())

    async def send(request: bytes) -> None:
        try:
            measured.clients.append(await _send(load, request))
        finally:
            gate.release()
        on_end()

    async with asyncio.TaskGroup() as group:
        for request, arrives_s in zip(requests, arrivals(load.level, load.seed), strict=False):
            await _sleep_until(measured.began_at + arrives_s)
            await gate.acquire()
            group.create_task(send(request))
    measured.ended_at = time.monotonic()
    measured.duration_s = measured.ended_at - measured.began_at
    return measured


def arrivals(level: Level, seed: int) -> Iterator[float]:
    """Yield the arrival times of requests, in seconds from the start; without a rate all are 0."""
    numbers, arrives_s = random.Random(seed), 0.0
    while True:
        yield arrives_s
        if level.request_rate is not None:
            arrives_s += numbers.gammavariate(level.burstiness, 1 / (level.request_rate * level.burstiness))


async def _sleep_until(moment: float) -> None:
    left_s = moment - time.monotonic()
    if left_s > 0:
        await asyncio.sleep(left_s)


async def _send(load: Load, request: bytes) -> StreamClient:
    server = load.server
    address, loop = urlsplit(server.url), asyncio.get_running_loop()
    client = StreamClient(request)
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        async with asyncio.timeout(load.timeout_s):
            transport, _ = await loop.create_connection(lambda: client, address.hostname or "", port, ssl=server.trust)
            try:
                await client.done
            finally:
                transport.abort()
    except TimeoutError:
        client.error = f"not answered within {load.timeout_s:g} s"
    except OSError as error:
        client.error = f"no connection: {error}"
    return client


def _requests(load: Load) -> Iterator[bytes]:
    """Yield the encoded HTTP requests."""
    server, address = load.server, urlsplit(load.server.url)
    key = f"Authorization: Bearer {server.api_key}\r\n" if server.api_key else ""
    common = {"model": server.model, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    for prompt in load.dataset.prompts(load.num_requests, load.seed):
        body = json.dumps(common | prompt.fields)
        path = f"{address.path}{prompt.path}"
        head = f"POST {path} HTTP/1.1\r\nHost: {address.netloc}\r\n{key}Content-Type: application/json\r\n"
        yield f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()
