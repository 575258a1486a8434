"""The console's snapshots: health, load, ended requests; access to them; and the end of the feed."""

import asyncio
import json
from contextlib import aclosing

import httpx
import pytest

from tests.frontend.fakes import FakeTokenizer
from tetrad.frontend.access.guard import Guard
from tetrad.frontend.api.http.console import feed
from tetrad.frontend.api.http.console.feed import Feed
from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.model_directory import ModelDirectory
from tetrad.frontend.service import serve
from tetrad.services.errors import Unauthenticated
from tetrad.v1 import engine_core_pb2

PROMPT, SECRET_ANSWER = "the user's secret", "The quick brown fox"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(feed, "_INTERVAL_S", 0.01)


async def events_of(http, **headers):
    """Yield the events of the console."""
    async with http.stream("GET", "/console/events", headers=headers) as response:
        assert (response.status_code, response.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        async for line in response.aiter_lines():
            if line.startswith("data:"):
                yield json.loads(line.removeprefix("data:"))


async def first_event(http, **headers):
    async with aclosing(events_of(http, **headers)) as events:
        return await anext(events)


async def until(http, holds):
    """Return the first event of which this holds."""
    async with asyncio.timeout(10), aclosing(events_of(http)) as events:
        return await anext(event async for event in events if holds(event))


def tokenizer_state(event):
    return event["topology"]["tokenizers"][0]["state"]


def bearer(key):
    return {"authorization": f"Bearer {key}"}


async def complete(http, prompt=PROMPT, headers=None, **fields):
    response = await http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 20} | fields, headers=headers)
    assert response.status_code == 200
    return response.json()["id"]


async def test_every_service_is_told_with_its_state(http):
    topology = (await first_event(http))["topology"]

    nodes = [topology["frontend"], *topology["tokenizers"], *topology["engines"], *topology["engines"][0]["workers"]]
    assert [node["name"] for node in nodes] == ["frontend", "tokenizer 0", "engine core 0", "worker 0"]
    assert {node["state"] for node in nodes} == {"connected"}
    assert (topology["engines"][0]["model"], topology["engines"][0]["kv_cache_tokens"]) == ("fake", 1600)


async def test_a_lost_tokenizer_is_told_and_so_is_that_it_is_back(http, tokenizer):
    await tokenizer.kill()
    lost = await until(http, lambda event: tokenizer_state(event) == "lost")
    await tokenizer.start()
    back = await until(http, lambda event: tokenizer_state(event) == "connected")

    assert lost["topology"]["tokenizers"][0]["problem"].startswith("not connected")
    assert lost["topology"]["frontend"]["state"] == "not ready"
    assert back["topology"]["frontend"]["state"] == "connected"


async def test_what_is_lost_for_a_moment_is_told_in_that_moment(http, tokenizer, monkeypatch):
    """Not at the next second, by which it may be back."""
    monkeypatch.setattr(feed, "_INTERVAL_S", 60)
    async with asyncio.timeout(30), aclosing(events_of(http)) as events:
        states = [tokenizer_state(await anext(events))]

        await tokenizer.kill()
        states += [tokenizer_state(await anext(events))]
        await tokenizer.start()
        states += [tokenizer_state(await anext(events))]

    assert states == ["connected", "lost", "connected"]


async def test_a_lost_engine_core_leaves_its_worker_unknown(http, engine):
    await engine.kill()
    [node] = (await until(http, lambda event: event["topology"]["engines"][0]["state"] == "lost"))["topology"]["engines"]

    assert [worker["state"] for worker in node["workers"]] == ["unknown"]


@pytest.mark.parametrize(
    ("kind", "engine_state", "worker_state"),
    [
        (engine_core_pb2.ENGINE_NOTICE_KIND_WORKER_LOST, "connected", "lost"),
        (engine_core_pb2.ENGINE_NOTICE_KIND_DRAINING, "draining", "connected"),
        (engine_core_pb2.ENGINE_NOTICE_KIND_SLEEPING, "asleep", "connected"),
    ],
)
async def test_an_engine_core_s_notices_are_told(http, engine, kind, engine_state, worker_state):
    await engine.tell(kind)
    event = await until(http, lambda event: event["topology"]["frontend"]["problem"])

    [node] = event["topology"]["engines"]
    assert (node["state"], node["workers"][0]["state"]) == (engine_state, worker_state)


async def test_load_has_what_charts_need(http):
    before = (await first_event(http))["load"]
    await complete(http)
    after = (await until(http, lambda event: event["load"]["generation_tokens"] > before["generation_tokens"]))["load"]

    assert after["generation_tokens"] - before["generation_tokens"] == 20
    assert after["first_token_s"][1] - before["first_token_s"][1] == 1
    buckets = after["first_token_s"][2]
    assert buckets == sorted(buckets)
    assert (len(buckets) > 10, buckets[-1][1]) == (True, after["first_token_s"][1])
    assert set(after) >= {"running", "waiting", "kv_cache_usage", "per_token_s", "cache_queries", "cache_hits"}
    assert set(after) >= {"draft_tokens", "accepted_tokens"}


async def test_the_blocks_of_an_engine_core_are_told(http, engine):
    counts = {"num_blocks_cached": 9, "num_blocks_evicted": 4, "num_blocks_swapped_out": 3, "num_blocks_swapped_in": 2}
    cache = engine_core_pb2.KvCacheLoad(
        block_size=16,
        num_free_cached_blocks=20,
        groups=[engine_core_pb2.KvGroupInfo(), engine_core_pb2.KvGroupInfo(sliding_window=512)],
        **counts,
    )
    stats = engine_core_pb2.SchedulerStats(prefix_cache_queries=100, prefix_cache_hits=60)
    engine.load_fields = {"num_gpu_blocks": 101, "num_free_blocks": 70, "stats": stats, "kv_cache": cache}

    event = await until(http, lambda event: event["topology"]["engines"][0].get("kv_cache"))
    told = event["topology"]["engines"][0]["kv_cache"]

    # The null block is none of them.
    assert (told["num_used_blocks"], told["num_free_cached_blocks"], told["num_empty_blocks"]) == (30, 20, 50)
    assert (told["num_queries"], told["num_hits"], told["block_size"]) == (100, 60, 16)
    assert told["groups"] == [{"sliding_window": 0, "is_state": False}, {"sliding_window": 512, "is_state": False}]
    assert {name: told[name] for name in counts} == counts


async def test_an_engine_core_of_an_earlier_release_says_nothing_of_its_blocks(http):
    node = (await until(http, lambda event: event["topology"]["engines"][0]["load"]))["topology"]["engines"][0]

    assert node["kv_cache"] is None


async def test_a_request_is_told_once_with_its_phases(http):
    async with asyncio.timeout(10), aclosing(events_of(http)) as events:
        await anext(events)
        request_id = await complete(http)
        [told] = (await anext(event async for event in events if event["requests"]))["requests"]
        later = [await anext(events) for _ in range(3)]

    assert told["request_id"].startswith(request_id)
    assert (told["num_prompt_tokens"], told["num_generation_tokens"]) == (len(PROMPT), 20)
    assert told["finish_reasons"] == ["length"]
    phases = [told["queue_s"] or 0, told["prefill_s"], told["decode_s"]]
    assert min(phases) >= 0
    assert sum(phases) == pytest.approx(told["total_s"], abs=0.05)
    assert not any(event["requests"] for event in later)


async def test_no_text_of_anybody_is_told(http):
    await complete(http, logprobs=2, stop=["jumps"])
    text = json.dumps(await first_event(http))

    assert PROMPT not in text
    assert SECRET_ANSWER not in text


async def test_an_error_is_told_by_its_reason_alone(http, engine):
    engine.reject = lambda _: Unauthenticated("a text that names things", reason="SOME_REASON")
    await http.post("/v1/completions", json={"prompt": PROMPT})
    event = await first_event(http)

    assert event["requests"][0]["error"] == "SOME_REASON"
    assert "names things" not in json.dumps(event)


async def test_requests_are_for_operators_and_all_else_for_every_key(serve_frontend):
    async with serve_frontend(api_key=("user",), operator_api_key=("boss",)) as frontend:
        await complete(frontend.http, headers=bearer("user"))
        user = await first_event(frontend.http, **bearer("user"))
        boss = await first_event(frontend.http, **bearer("boss"))

    assert (user["requests"], len(boss["requests"])) == ([], 1)
    assert "operator key" in user["requests_refused"]
    assert boss["requests_refused"] == ""
    assert user["topology"]["engines"][0]["state"] == "connected"


async def test_pages_of_other_origins_do_not_see_requests(http):
    await complete(http)
    event = await first_event(http, origin="https://elsewhere.example")

    assert event["requests"] == []
    assert "elsewhere.example" in event["requests_refused"]


async def test_a_key_that_is_taken_away_ends_the_stream(serve_frontend, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("one\ntwo\n")
    async with (
        serve_frontend(api_key_file=keys) as frontend,
        asyncio.timeout(10),
        aclosing(events_of(frontend.http, **bearer("one"))) as events,
    ):
        await anext(events)
        keys.write_text("two\n")
        told = [event async for event in events]

    assert told[-1]["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("url", ["", "https://traces.example/search"])
async def test_the_page_of_the_traces_is_told(serve_frontend, url):
    async with serve_frontend(traces_url=url) as frontend:
        assert (await first_event(frontend.http))["traces_url"] == url


async def test_nothing_is_done_while_nobody_watches(llm):
    watching = Feed(ModelDirectory.alone(llm), Guard(FrontendSettings()), "tetrad").follow([], None)
    before = len(asyncio.all_tasks())
    await anext(watching)
    await watching.aclose()

    assert len(asyncio.all_tasks()) == before


async def test_watchers_share_what_is_asked_for_them(llm, monkeypatch):
    monkeypatch.setattr(feed, "_INTERVAL_S", 60.0)
    asked, loads_known = [], llm.engine_admin.loads_known
    monkeypatch.setattr(llm.engine_admin, "loads_known", lambda: (asked.append(1), loads_known())[1])
    shared = Feed(ModelDirectory.alone(llm), Guard(FrontendSettings()), "tetrad")
    watchers = [shared.follow([], None) for _ in range(20)]

    events = await asyncio.gather(*(anext(watcher) for watcher in watchers))
    for watcher in watchers:
        await watcher.aclose()

    assert len(asked) == 1
    assert len(set(events)) == 1


async def test_a_watcher_alone_gets_something_new_each_time(llm):
    async with aclosing(Feed(ModelDirectory.alone(llm), Guard(FrontendSettings()), "tetrad").follow([], None)) as events:
        times = [json.loads((await anext(events)).removeprefix(b"data: "))["time"] for _ in range(5)]

    assert len(set(times)) == 5


async def test_the_stream_does_not_hold_up_a_frontend_that_leaves(frontend):
    async with asyncio.timeout(5), aclosing(events_of(frontend.http)) as events:
        await anext(events)
        frontend.shutdown.set()
        states = [event["topology"]["frontend"]["state"] async for event in events]

    assert states[-1] == "draining"


async def test_nor_one_that_has_a_successor(tokenizer, engine, monkeypatch):
    """Without an end of its own the stream would keep a retired frontend for as long as somebody looks."""
    monkeypatch.setattr(feed, "_INTERVAL_S", 60.0)
    ready, retire = asyncio.Event(), asyncio.Event()
    ports = []
    settings = FrontendSettings(
        port=0, tokenizer_targets=(tokenizer.target,), engine_targets=(engine.target,), responses_store="none"
    )

    def on_ready(port, _):
        ports.append(port)
        ready.set()

    async with asyncio.timeout(30):
        serving = asyncio.create_task(serve(settings, asyncio.Event(), retire=retire, on_ready=on_ready))
        await ready.wait()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{ports[0]}") as http, aclosing(events_of(http)) as events:
            await anext(events)
            retire.set()
            assert [event["topology"]["frontend"]["state"] async for event in events] == ["draining"]
        await serving


async def test_a_starting_frontend_tells_what_it_waits_for(tokenizer, engine, sockets):
    absent = FakeTokenizer(sockets / "absent")
    settings = FrontendSettings(tokenizer_targets=(absent.target,), engine_targets=(engine.target,), responses_store="none")
    async with AsyncLLM(settings) as llm:
        event = json.loads(
            (await anext(Feed(ModelDirectory.alone(llm), Guard(settings), "tetrad").follow([], None))).removeprefix(b"data: ")
        )

    assert event["model"] == ""
    assert [node["state"] for node in event["topology"]["tokenizers"]] == ["connecting"]
