"""Reference cycles: an ended request or connection frees its memory at once, without the garbage collector.

The collector looks at old objects about once per million requests (garbage.py), so a cycle per request is a leak of gigabytes.
"""

import asyncio
import gc

import grpc
import httpx
import pytest

from tetrad.v1 import inference_pb2, inference_pb2_grpc

NUM_REQUESTS = 3


async def post(frontend, path, **fields):
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{frontend.port}", timeout=20) as client:
        response = await client.post(path, json=fields)
        assert response.status_code in (200, 400)


async def complete(frontend, **fields):
    await post(frontend, "/v1/completions", **({"prompt": "a b c", "max_tokens": 4} | fields))


async def chat(frontend, **fields):
    await post(frontend, "/v1/chat/completions", messages=[{"role": "user", "content": "a b"}], max_tokens=4, **fields)


async def respond(frontend, **fields):
    await post(frontend, "/v1/responses", input="a b", max_output_tokens=4, **fields)


async def message(frontend, **fields):
    await post(frontend, "/v1/messages", model="fake", messages=[{"role": "user", "content": "a b"}], max_tokens=4, **fields)


async def leave(frontend):
    """Send a request and close the connection at the first token."""
    reader, writer = await asyncio.open_connection("127.0.0.1", frontend.port)
    body = b'{"prompt": "a", "max_tokens": 1000, "stream": true}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    writer.write(head % len(body) + body)
    await reader.readuntil(b"data:")
    writer.close()
    await writer.wait_closed()


async def generate(frontend):
    async with grpc.aio.insecure_channel(frontend.grpc_address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        request = inference_pb2.GenerateRequest(text="a b c")
        request.sampling_params.max_tokens = 4
        async for _ in stub.Generate(request):
            pass


CALLS = {
    "completion": complete,
    "completion stream": lambda frontend: complete(frontend, stream=True),
    "several choices": lambda frontend: complete(frontend, n=3, logprobs=1),
    "refused": lambda frontend: complete(frontend, max_tokens=-1),
    "chat": chat,
    "chat stream": lambda frontend: chat(frontend, stream=True),
    "response": respond,
    "response stream": lambda frontend: respond(frontend, stream=True),
    "message": message,
    "message stream": lambda frontend: message(frontend, stream=True),
    "a client that leaves": leave,
    "gRPC": generate,
}


def is_ours(thing):
    return type(thing).__module__.startswith("tetrad.") and "_pb2" not in type(thing).__module__


@pytest.fixture
def garbage():
    """Collects what was there before; gives a function that returns the types of ours in cycles since then."""

    def collect():
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        found = sorted({type(thing).__qualname__ for thing in gc.garbage if is_ours(thing)})
        gc.garbage.clear()
        return found

    yield collect
    gc.set_debug(0)
    gc.enable()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
async def test_an_ended_request_leaves_no_cycle(frontend, garbage, call):
    await call(frontend)
    gc.collect()
    gc.disable()

    for _ in range(NUM_REQUESTS):
        await call(frontend)
    await asyncio.sleep(0.1)  # the server closes its ends of the connections

    assert garbage() == []
