"""Profile scale of docs/deployment.md: different prompts are spread over two engine cores, and equal ones go to one of them."""

import asyncio
import json

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.documents import Page

ENGINES = ("engine-core", "engine-core-2")
LOAD = """
import asyncio, json, grpc
from tetrad.v1 import engine_core_pb2 as pb, engine_core_pb2_grpc as rpc
async def main():
    async with grpc.aio.insecure_channel("127.0.0.1:50054") as channel:
        load = (await rpc.EngineCoreAdminServiceStub(channel).GetLoad(pb.GetLoadRequest())).load
    print(json.dumps({"tokens": load.stats.prefix_cache_queries, "hits": load.stats.prefix_cache_hits}))
asyncio.run(main())
"""
# Ready is a frontend that has one engine core; this one waits for the other, too.
WAIT_FOR_BOTH = """
import json, time, urllib.request
def both():
    try:
        return all(each["ready"] for each in json.load(urllib.request.urlopen(f"http://{frontend}:8000/health"))["dependencies"])
    except OSError:
        return False
while not both():
    time.sleep(0.2)
"""
PROMPT_TOKENS = 320
AT_ONCE = 4


@pytest.fixture(scope="module")
def stack(make_project):
    project = make_project("scale")
    [start] = Page.of("docs/deployment.md").section("Scale").blocks()
    project.run(start)
    project.wait_ready()
    for frontend in ("frontend-1", "frontend-2"):
        project.python(frontend, f'frontend = "{frontend}"\n{WAIT_FOR_BOTH}')
    return project


def prompt_tokens_of_each(stack):
    return [json.loads(stack.python(engine, LOAD))["tokens"] for engine in ENGINES]


def ask(stack, prompts):
    """Ask for a few tokens behind each prompt; return how many prompt tokens each engine core has got."""

    async def ask_all():
        room = asyncio.Semaphore(AT_ONCE)
        async with httpx.AsyncClient(base_url=stack.url, timeout=120) as client:

            async def one(prompt):
                async with room:
                    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0}
                    return (await client.post("/v1/completions", json=body)).raise_for_status()

            await asyncio.gather(*map(one, prompts))

    before = prompt_tokens_of_each(stack)
    asyncio.run(ask_all())
    return [after - earlier for after, earlier in zip(prompt_tokens_of_each(stack), before, strict=True)]


def test_distinct_prompts_are_shared_within_30_percent(stack, tell):
    prompts = [[1000 + number * 7 + place for place in range(PROMPT_TOKENS)] for number in range(60)]

    tokens = ask(stack, prompts)

    tell(f"distinct prompts: {tokens} prompt tokens at each engine core")
    assert sum(tokens) == 60 * PROMPT_TOKENS
    assert max(tokens) <= 1.3 * min(tokens)


def test_prompts_with_a_common_beginning_go_where_it_is_cached(stack, tell):
    beginning = list(range(5000, 5000 + PROMPT_TOKENS))
    ask(stack, [beginning])

    tokens = ask(stack, [[*beginning, *range(9000 + number * 16, 9016 + number * 16)] for number in range(40)])

    tell(f"common beginning: {tokens} prompt tokens at each engine core")
    assert max(tokens) >= 0.9 * sum(tokens)


def test_grpc_has_one_address_too(stack):
    with grpc.insecure_channel(f"127.0.0.1:{stack.grpc_port}") as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service="tetrad.v1.InferenceService"), timeout=10
        )

    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def answers(stack) -> bool:
    body = {"prompt": "x", "max_tokens": 4}
    try:
        return httpx.post(f"{stack.url}/v1/completions", json=body, timeout=60).status_code == 200
    except httpx.TransportError:
        return False


def test_a_killed_half_is_done_without(stack, tell):
    """Until the balancer has noticed, a client may have to ask again."""
    for service in ("frontend-2", "tokenizer-2", "engine-core-2", "worker-2"):
        stack.kill(service)

    asked = 0
    in_a_row = 0
    while in_a_row < 10:
        asked, in_a_row = asked + 1, in_a_row + 1 if answers(stack) else 0
        assert asked < 40, stack.logs()

    tell(f"half of profile scale was killed: 10 answers in a row after {asked - 10} requests")
