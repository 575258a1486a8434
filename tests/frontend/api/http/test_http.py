"""OpenAI's API over a real port: disconnects, ids, models, tokenization, operations, metrics, errors, drains."""

import asyncio
from collections import Counter

import httpx
import pytest

from tests.frontend.api.http.event_streams import events
from tests.frontend.fakes import TEXT
from tetrad.services.errors import InternalError, Overloaded, Unavailable
from tetrad.services.rpc.columns import unpack_u32
from tetrad.services.version import VERSION


async def unhealthy(frontend):
    async with asyncio.timeout(10):
        while (response := await frontend.http.get("/health")).status_code == 200:
            pass
    return response


@pytest.mark.parametrize("stream", [True, False])
async def test_client_that_leaves_aborts_its_request(frontend, engine, stream):
    engine.pause()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{frontend.port}") as client:
        body = {"prompt": "hi", "max_tokens": 400, "stream": stream}
        task = asyncio.create_task(client.post("/v1/completions", json=body))
        await engine.until(lambda: engine.running)
        await engine.take(3)

        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    await engine.until(lambda: engine.aborted)
    assert not engine.running


async def test_many_clients_that_leave_do_not_harm_the_next(frontend, engine):
    engine.pause()
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{frontend.port}", limits=httpx.Limits(max_connections=50)
    ) as client:
        body = {"prompt": "hi", "max_tokens": 400}
        tasks = [asyncio.create_task(client.post("/v1/completions", json=body)) for _ in range(50)]
        await engine.until(lambda: len(engine.running) == 50)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await engine.until(lambda: not engine.running)
    await engine.allow(None)

    response = await frontend.http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 3})

    assert response.json()["choices"][0]["text"] == "The"


async def test_request_id_is_honoured_and_made(http, engine):
    sent = await http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 1}, headers={"X-Request-Id": "mine-1"})
    made = [await http.get("/health"), await http.get("/nowhere"), await http.post("/v1/completions", content=b"{")]

    assert sent.headers["x-request-id"] == "mine-1"
    assert sent.json()["id"] == "cmpl-mine-1"
    assert engine.requests[0].external_req_id == "cmpl-mine-1"
    assert all(len(response.headers["x-request-id"]) == 32 for response in made)


async def test_two_requests_may_share_an_id(http):
    body, headers = {"prompt": "hi", "max_tokens": 30}, {"X-Request-Id": "same"}

    responses = await asyncio.gather(*(http.post("/v1/completions", json=body, headers=headers) for _ in range(2)))

    assert [response.json()["choices"][0]["text"] for response in responses] == [TEXT[:30]] * 2


async def test_models(serve_frontend):
    async with serve_frontend(served_model_names=("one", "org/two"), model="/models/x") as frontend:
        listed = (await frontend.http.get("/v1/models")).json()
        second = (await frontend.http.get("/v1/models/org/two")).json()
        completion = await frontend.http.post("/v1/completions", json={"model": "org/two", "prompt": "hi"})

    assert [card["id"] for card in listed["data"]] == ["one", "org/two"]
    assert (second["id"], second["root"], second["max_model_len"]) == ("org/two", "/models/x", 512)
    assert completion.json()["model"] == "org/two"


async def test_a_generating_model_says_that_it_makes_no_embeddings(http):
    answer = await http.post("/v1/embeddings", json={"input": "x"})

    assert answer.status_code == 400
    assert "does not support Embeddings API: it generates" in answer.json()["error"]["message"]


async def test_tokenize_and_back(http):
    tokenized = (await http.post("/tokenize", json={"prompt": "hé", "return_token_strs": True})).json()
    chat = (await http.post("/tokenize", json={"messages": [{"role": "user", "content": "x"}]})).json()
    text = (await http.post("/detokenize", json={"tokens": tokenized["tokens"]})).json()

    assert (tokenized["count"], tokenized["max_model_len"], tokenized["tokens"]) == (3, 512, [104, 195, 169])
    assert len(tokenized["token_strs"]) == 3
    assert bytes(chat["tokens"]).decode() == "<user>x\n<assistant>"
    assert text == {"prompt": "hé"}


async def test_operations(http, engine):
    assert (await http.get("/health")).status_code == 200
    assert (await http.get("/version")).json() == {"version": VERSION}
    assert "/v1/chat/completions" in (await http.get("/openapi.json")).json()["paths"]
    assert (await http.get("/docs")).status_code == 200


async def test_health_is_503_while_the_engine_is_away(frontend, engine):
    await engine.kill()
    response = await unhealthy(frontend)

    assert response.status_code == 503
    assert "No engine core is reachable" in response.json()["error"]["message"]


async def test_metrics_count_requests_and_tokens(http):
    for _ in range(3):
        await http.post("/v1/completions", json={"prompt": "hello", "max_tokens": 4})

    lines = (await http.get("/metrics")).text.splitlines()
    values = Counter()  # summed over labels
    for line in lines:
        if line[0] != "#":
            values[line.rpartition(" ")[0].partition("{")[0]] += float(line.rpartition(" ")[2])
    assert values["tetrad:prompt_tokens_total"] == 15
    assert values["tetrad:generation_tokens_total"] == 12
    assert values["tetrad:request_success_total"] == 3
    assert values["tetrad:time_to_first_token_seconds_count"] == 3
    assert values["tetrad:e2e_request_latency_seconds_count"] == 3
    assert values["tetrad:kv_cache_usage_perc"] == 0.25
    assert values["tetrad:num_requests_running"] == values["tetrad:num_requests_waiting"] == 0


async def test_early_error_of_a_stream_has_its_status(http, engine):
    engine.reject = lambda request: Overloaded("queue full", retry_after_s=2.5)

    response = await http.post("/v1/completions", json={"prompt": "hi", "stream": True})

    assert (response.status_code, response.headers["retry-after"]) == (429, "3")
    assert response.json()["error"] == {
        "message": "queue full",
        "type": "rate_limit_error",
        "param": None,
        "code": "overloaded",
    }


async def test_late_error_of_a_stream_is_an_event_before_done(serve_frontend, engine):
    engine.pause()
    async with serve_frontend(recovery_timeout_s=0.2) as frontend:
        task = asyncio.create_task(events(frontend.http, "/v1/completions", prompt="hi", max_tokens=50))
        await engine.until(lambda: engine.running)
        await engine.take(3)
        await asyncio.sleep(0.05)  # let the first chunk start the response
        await engine.kill()

        chunks = await task

    assert chunks[-1]["error"]["type"] == "server_error"
    assert "has been away" in chunks[-1]["error"]["message"]
    assert chunks[0]["choices"][0]["text"]


async def test_drain_finishes_running_streams_and_refuses_new_requests(serve_frontend, engine):
    engine.pause()
    async with serve_frontend() as frontend:
        task = asyncio.create_task(events(frontend.http, "/v1/completions", prompt="hi", max_tokens=5))
        await engine.until(lambda: engine.running)
        frontend.shutdown.set()
        await unhealthy(frontend)
        refused = await frontend.http.post("/v1/completions", json={"prompt": "hi"})
        await engine.allow(None)

        chunks = await task

    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "draining"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "The q"


async def test_drain_ends_what_does_not_finish(serve_frontend, engine):
    engine.pause()
    async with serve_frontend(drain_timeout_s=0.1) as frontend:
        task = asyncio.create_task(frontend.http.post("/v1/completions", json={"prompt": "hi"}))
        await engine.until(lambda: engine.running)
        async with asyncio.timeout(3):
            await frontend.stop()

    assert (await task).status_code == 503


async def test_bug_is_answered_with_500_and_no_inner_text(frontend, tokenizer, engine):
    engine.reject = lambda request: InternalError("device failed")
    response = await frontend.http.post("/v1/completions", json={"prompt": "hi"})

    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"


async def test_port_that_is_taken_is_a_clear_error(frontend, serve_frontend):
    with pytest.raises(Unavailable, match=f"Cannot listen on 127.0.0.1:{frontend.port}"):
        async with serve_frontend(port=frontend.port) as second:
            await second.task


async def test_the_prompts_of_one_completion_are_tokenized_together(http, tokenizer, engine):
    tokenizer.hung.clear()
    asking = asyncio.create_task(http.post("/v1/completions", json={"prompt": [f"p{i}" for i in range(8)], "max_tokens": 1}))
    async with asyncio.timeout(10):
        while len(tokenizer.text_sizes) < 8:  # noqa: ASYNC110 - the fake has no event for it
            await asyncio.sleep(0.005)
    tokenizer.hung.set()

    response = await asking
    assert [choice["index"] for choice in response.json()["choices"]] == list(range(8))
    assert [bytes(unpack_u32(request.prompt_token_ids)) for request in engine.requests] == [b"p%d" % i for i in range(8)]
    assert len({request.call_number for request in engine.requests}) == 1


async def test_a_completion_with_one_wrong_prompt_generates_nothing(http, engine):
    body = {"prompt": ["fine", "x" * 100_000, "fine as well"], "max_tokens": 1000}

    response = await http.post("/v1/completions", json=body)

    assert response.status_code == 400
    await engine.until(lambda: not engine.running)
