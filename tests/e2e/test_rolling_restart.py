"""A rolling restart under load: every service is a new process afterwards, and no client sees a difference."""

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass

import grpc
import httpx
import openai
import psutil
import pytest

from tests.e2e.service_manager import ServiceManager, service_manager
from tetrad.v1 import inference_pb2, inference_pb2_grpc, types_pb2

MODEL = "smollm2-135m-instruct"
NUM_CLIENTS = 4  # of each kind
DEADLINE_S = 60
PAUSE_S = 0.2
"""Of a client between two requests: without it, the load takes all the CPU time that the new processes need for their start."""
PROMPT = "Count the waves"


def body(number: int, **fields) -> dict:
    return {"model": MODEL, "prompt": f"{PROMPT} {number}", "max_tokens": 24, "ignore_eos": True, "seed": number} | fields


async def whole(client: httpx.AsyncClient, number: int) -> str:
    response = await client.post("/v1/completions", json=body(number))
    response.raise_for_status()
    return str(response.json()["choices"][0]["text"])


async def streamed(client: httpx.AsyncClient, number: int) -> str:
    async with client.stream("POST", "/v1/completions", json=body(number, stream=True)) as response:
        response.raise_for_status()
        lines = [line async for line in response.aiter_lines() if line.startswith("data: {")]
    return "".join(json.loads(line.removeprefix("data: "))["choices"][0]["text"] for line in lines)


# What docs/recovery.md tells clients of the gRPC API to set.
RETRY = {
    "methodConfig": [
        {
            "name": [{"service": "tetrad.v1.InferenceService"}],
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "0.1s",
                "maxBackoff": "2s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}


def open_grpc(server) -> grpc.aio.Channel:
    """Return a channel to the public gRPC API, on a connection of its own."""
    options = (("grpc.service_config", json.dumps(RETRY)), ("grpc.use_local_subchannel_pool", 1))
    return grpc.aio.insecure_channel(server.grpc_target, options=options)


async def called(channel: grpc.aio.Channel, number: int) -> str:
    params = types_pb2.SamplingParams(max_tokens=24, ignore_eos=True, seed=number)
    request = inference_pb2.GenerateRequest(text=f"{PROMPT} {number}", sampling_params=params)
    stub = inference_pb2_grpc.InferenceServiceStub(channel)
    return "".join([message.text async for message in stub.Generate(request, timeout=DEADLINE_S)])


class Load:
    """Clients that ask the same again and again, each on its own kept-alive connection, and never try anything twice."""

    def __init__(self, server) -> None:
        self._server = server
        self._url = server.url
        self._stop = asyncio.Event()
        self.answers: list[tuple[int, str]] = []

    async def run(self, ask: Callable[[httpx.AsyncClient, int], Awaitable[str]], number: int) -> None:
        async with httpx.AsyncClient(base_url=self._url, timeout=DEADLINE_S) as client:
            while not self._stop.is_set():
                self.answers.append((number, await ask(client, number)))
                await asyncio.sleep(PAUSE_S)

    async def run_openai(self, number: int) -> None:
        async with openai.AsyncOpenAI(base_url=f"{self._url}/v1", api_key="-", max_retries=0, timeout=DEADLINE_S) as client:
            while not self._stop.is_set():
                fields = body(number)
                extra = {"ignore_eos": fields.pop("ignore_eos")}
                completion = await client.completions.create(**fields, extra_body=extra)
                self.answers.append((number, completion.choices[0].text))
                await asyncio.sleep(PAUSE_S)

    async def run_grpc(self, number: int, *, calls_a_channel: int) -> None:
        while not self._stop.is_set():
            async with open_grpc(self._server) as channel:
                for _ in range(calls_a_channel):
                    self.answers.append((number, await called(channel, number)))
                    await asyncio.sleep(PAUSE_S)
                    if self._stop.is_set():
                        break

    def stop(self) -> None:
        self._stop.set()


def services(server) -> dict[str, set[int]]:
    """Return the process ids of each service of a server."""
    found: dict[str, set[int]] = {}
    for process in server.processes()[1:]:
        try:
            module = process.cmdline()[-1]
        except (psutil.Error, IndexError):
            continue
        if module.startswith("tetrad."):
            found.setdefault(module, set()).add(process.pid)
    return found


async def wait_said(server, text: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while text not in server.output():
        assert time.monotonic() < deadline, f"never said {text!r}:\n{server.output()}"
        await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
def manager() -> Iterator[ServiceManager]:
    with service_manager() as manager:
        yield manager


@pytest.fixture(scope="module")
def stack(start_module_server, manager):
    """A server on which a request of 8,000 tokens takes 80 s: longer than a rolling restart."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TETRAD_WORKER_SIM_SECONDS_PER_STEP", "0.01")
        return start_module_server("--device", "sim", "--max-model-len", "8192")


@dataclass
class LongStreams:
    """A stream of each API that begins before a restart and goes on behind it.

    Attributes:
        line: that came over HTTP at last.
        message: that came over gRPC at last.
        later_text: of a call that was made on the channel of the second stream, behind the restart.
    """

    line: str = ""
    message: inference_pb2.GenerateResponse | None = None
    later_text: str = ""


@contextlib.asynccontextmanager
async def held_streams(server) -> AsyncIterator[LongStreams]:
    """Hold the streams open during the body, and read on behind it."""
    seen = LongStreams()
    params = types_pb2.SamplingParams(max_tokens=8000, ignore_eos=True)
    async with (
        open_grpc(server) as channel,
        httpx.AsyncClient(base_url=server.url, timeout=DEADLINE_S) as client,
        client.stream("POST", "/v1/completions", json=body(0, max_tokens=8000, stream=True)) as response,
    ):
        lines = response.aiter_lines()
        await anext(lines)
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        call = stub.Generate(inference_pb2.GenerateRequest(text=PROMPT, sampling_params=params))
        await call.read()

        yield seen

        while not seen.line:
            seen.line = await anext(lines)
        seen.message = await call.read()
        seen.later_text = await called(channel, 1)


@dataclass
class Restart:
    """What was seen of a rolling restart under load.

    Attributes:
        before, after: process ids of each service.
        undisturbed: text of each client's request before.
        answers: (client, text) during the restart and behind it.
        long: the streams that were open all the time.
    """

    before: dict[str, set[int]]
    after: dict[str, set[int]]
    undisturbed: list[str]
    answers: list[tuple[int, str]]
    long: LongStreams


async def restart_under_load(server) -> Restart:
    before = services(server)
    async with httpx.AsyncClient(base_url=server.url) as client:
        undisturbed = [await whole(client, number) for number in range(NUM_CLIENTS)]
    async with open_grpc(server) as channel:
        undisturbed += [await called(channel, number) for number in (NUM_CLIENTS, NUM_CLIENTS + 1)]
    load = Load(server)

    async with asyncio.timeout(DEADLINE_S), held_streams(server) as long, asyncio.TaskGroup() as group:
        for number in range(NUM_CLIENTS):
            group.create_task(load.run(whole, number))
            group.create_task(load.run(streamed, number))
        for number in range(2):
            group.create_task(load.run_openai(number))
        group.create_task(load.run_grpc(NUM_CLIENTS, calls_a_channel=1_000_000))
        group.create_task(load.run_grpc(NUM_CLIENTS + 1, calls_a_channel=1))
        server.process.send_signal(signal.SIGHUP)
        await wait_said(server, "Every service was restarted")
        # The predecessor still has the load's connections: each goes over with its next answer.
        answered = len(load.answers)
        while len(load.answers) < answered + 4 * NUM_CLIENTS:  # noqa: ASYNC110 - answers have no events
            await asyncio.sleep(0.05)
        after = services(server)
        load.stop()
    return Restart(before, after, undisturbed, load.answers, long)


@pytest.fixture(scope="module")
def restart(stack) -> Restart:
    return asyncio.run(restart_under_load(stack))


def test_a_rolling_restart_under_load_fails_no_request_and_changes_no_text(restart):
    assert set(restart.answers) == set(enumerate(restart.undisturbed))
    assert set(restart.before) == set(restart.after)
    for module, pids in restart.before.items():
        assert restart.after[module] - pids, f"{module} was not restarted"
        if module != "tetrad.frontend":  # the predecessor of that still has the long streams
            assert not restart.after[module] & pids


def test_a_long_stream_goes_on_at_the_retired_frontend_while_others_use_its_successor(restart):
    [old] = restart.before["tetrad.frontend"]

    assert restart.long.line
    assert restart.long.message is not None
    assert restart.long.message.token_ids
    assert restart.long.later_text  # on the channel whose first call went on at the retired one
    assert old in restart.after["tetrad.frontend"]
    assert len(restart.after["tetrad.frontend"]) == 2


def test_a_service_manager_learns_of_ready_and_reload_from_the_command_alone(stack, restart, manager):
    """Of the end: test_start_and_stop.py."""
    services_told = [each for each in stack.processes()[1:] if "NOTIFY_SOCKET" in each.environ()]

    assert manager.wait_for(3) == ["READY=1", "RELOADING=1", "READY=1"]
    assert services_told == []


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Send a request and return the first line of its answer."""
    writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(DEADLINE_S):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))
    return head.partition(b"\r\n")[0]


async def test_a_killed_frontend_refuses_nobody_and_closes_what_it_had(stack):
    async with asyncio.timeout(DEADLINE_S):
        while len(services(stack)["tetrad.frontend"]) > 1:  # noqa: ASYNC110 - another process, which a restart has retired
            await asyncio.sleep(0.05)
    [frontend] = services(stack)["tetrad.frontend"]
    port = int(stack.url.rpartition(":")[2])
    idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", port)
    assert b" 200 " in await ask(idle_reader, idle_writer)

    psutil.Process(frontend).kill()
    # Each at another moment of the restart; an error would be that of a refused connection.
    connections = []
    while frontend in (now := services(stack).get("tetrad.frontend", set())) or not now or len(connections) < 20:
        connections.append(await asyncio.open_connection("127.0.0.1", port))
        await asyncio.sleep(0.01)
    answers = await asyncio.gather(*(ask(*connection) for connection in connections))

    assert all(b" 200 " in answer for answer in answers)
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(idle_reader.read(), 5) == b""
    for _, writer in (*connections, (None, idle_writer)):
        writer.close()
