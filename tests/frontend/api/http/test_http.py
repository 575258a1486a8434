"""OpenAI's API over a real port: answers, streams, disconnects, ids, metrics."""

import asyncio
import json
from collections import Counter

import httpx
import openai
import pytest

from tests.frontend.fakes import EOS, TEXT
from tetrad.services.errors import InternalError, Overloaded, Unavailable
from tetrad.services.rpc.columns import unpack_u32
from tetrad.services.version import VERSION


async def events(client, path, **body):
    """Return the parsed events of a stream; asserts that [DONE] is the last, once."""
    async with client.stream("POST", path, json={"stream": True, **body}) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def unhealthy(frontend):
    async with asyncio.timeout(10):
        while (response := await frontend.http.get("/health")).status_code == 200:
            pass
    return response


@pytest.fixture
async def client(frontend):
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{frontend.port}/v1", api_key="none", max_retries=0) as opened:
        yield opened


async def test_completion_by_the_official_client(client):
    completion = await client.completions.create(model="fake", prompt="hi", max_tokens=9)

    assert (completion.choices[0].text, completion.choices[0].finish_reason) == (TEXT[:9], "length")
    assert completion.usage.model_dump(include={"prompt_tokens", "completion_tokens", "total_tokens"}) == {
        "prompt_tokens": 2,
        "completion_tokens": 9,
        "total_tokens": 11,
    }
    assert completion.id.startswith("cmpl-")


async def test_chat_by_the_official_client(client):
    messages = [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]

    chat = await client.chat.completions.create(model="fake", messages=messages, max_completion_tokens=9)

    assert chat.choices[0].message.content == TEXT[:9]
    assert chat.choices[0].message.role == "assistant"
    assert chat.choices[0].finish_reason == "length"
    assert chat.usage.prompt_tokens == len("<system>be\n<user>hi\n<assistant>")


@pytest.mark.parametrize("stop", [None, ["brown"]])
async def test_streamed_chat_equals_the_whole_one(client, stop):
    messages = [{"role": "user", "content": "hi"}]
    whole = await client.chat.completions.create(model="fake", messages=messages, max_tokens=30, stop=stop)

    stream = await client.chat.completions.create(
        model="fake", messages=messages, max_tokens=30, stop=stop, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]

    assert chunks[0].choices[0].delta.role == "assistant"
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == whole.choices[0].message.content
    )
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
    assert reasons == [whole.choices[0].finish_reason]
    assert (chunks[-1].choices, chunks[-1].usage) == ([], whole.usage)


async def test_streamed_completion_equals_the_whole_one(http):
    body = {"prompt": "hi", "max_tokens": 30, "n": 2, "stop": ["dog"]}
    whole = (await http.post("/v1/completions", json=body)).json()

    chunks = await events(http, "/v1/completions", **body)

    texts = {0: "", 1: ""}
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == {choice["index"]: choice["text"] for choice in whole["choices"]}
    assert all("usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize(
    ("prompt", "texts", "prompt_tokens"),
    [("ab", ["ab"], 2), (["ab", "cde"], ["ab", "cde"], 5), ([97, 98], ["ab"], 2), ([[97], [98, 99]], ["a", "bc"], 3)],
)
@pytest.mark.parametrize("n", [1, 2])
async def test_prompts_of_all_forms_with_echo(http, prompt, texts, prompt_tokens, n):
    response = await http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 3, "echo": True, "n": n})

    body = response.json()
    assert [choice["text"] for choice in body["choices"]] == [text + "The" for text in texts for _ in range(n)]
    assert [choice["index"] for choice in body["choices"]] == list(range(len(texts) * n))
    assert body["usage"]["prompt_tokens"] == prompt_tokens
    assert body["usage"]["completion_tokens"] == 3 * len(texts) * n


async def test_echo_without_tokens_scores_the_prompt(http):
    body = {"prompt": "abc", "max_tokens": 0, "echo": True, "logprobs": 1}

    choice = (await http.post("/v1/completions", json=body)).json()["choices"][0]

    assert choice["text"] == "abc"
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5]
    assert choice["logprobs"]["tokens"] == ["a", "b", "c"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2]


async def test_echo_of_a_prompt_of_one_token_has_its_position(http):
    body = {"prompt": "a", "max_tokens": 1, "echo": True, "logprobs": 1}

    choice = (await http.post("/v1/completions", json=body)).json()["choices"][0]

    assert choice["logprobs"]["token_logprobs"] == [None, -0.5]


async def test_streamed_echo_comes_first(http):
    chunks = await events(http, "/v1/completions", prompt=["ab", "c"], max_tokens=3, echo=True)

    texts = {0: "", 1: ""}
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == {0: "abThe", 1: "cThe"}


async def test_every_choice_of_a_streamed_echo_has_the_prompt_s_logprobs(http, engine):
    """Also if the engine core computes the first tokens of the choices in different steps."""
    step = engine._step

    def one_by_one(running):
        first = next(iter(running))
        waiting = {name: running.pop(name) for name in list(running) if name != first}
        outputs = step(running)
        running.update(waiting)
        return outputs

    engine._step = one_by_one
    chunks = await events(http, "/v1/completions", prompt="abc", max_tokens=2, echo=True, logprobs=1, n=2)

    found = {0: [], 1: []}
    for [choice] in (chunk["choices"] for chunk in chunks):
        columns = choice["logprobs"]
        found[choice["index"]] += zip(columns["tokens"], columns["token_logprobs"], columns["text_offset"], strict=True)
    whole = [("a", None, 0), ("b", -0.5, 1), ("c", -0.5, 2), ("T", -0.5, 3), ("h", -0.5, 4)]
    assert found == {0: whole, 1: whole}


async def test_completion_logprobs(http):
    body = {"prompt": "hi", "max_tokens": 2, "logprobs": 1}

    logprobs = (await http.post("/v1/completions", json=body)).json()["choices"][0]["logprobs"]

    assert logprobs == {
        "tokens": ["T", "h"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"T": -0.5}, {"h": -0.5}],
        "text_offset": [0, 1],
    }


async def test_chat_logprobs(client):
    messages = [{"role": "user", "content": "hi"}]

    chat = await client.chat.completions.create(model="fake", messages=messages, max_tokens=2, logprobs=True, top_logprobs=2)

    first = chat.choices[0].logprobs.content[0]
    assert (first.token, first.logprob, first.bytes) == ("T", -0.5, [84])
    assert [top.token for top in first.top_logprobs] == ["T", "U"]


async def test_sampling_fields_reach_the_engine(http, engine):
    body = {
        "prompt": "hi",
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "seed": 5,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.5,
        "logit_bias": {"5": 3},
        "stop_token_ids": [9],
        "ignore_eos": True,
        "min_tokens": 2,
        "max_tokens": 4,
        "priority": 3,
    }

    await http.post("/v1/completions", json=body)

    [request] = engine.requests
    sent = request.sampling_params
    assert (sent.temperature, sent.top_k, sent.seed, sent.min_tokens, sent.max_tokens) == (0.5, 7, 5, 2, 4)
    assert [round(value, 3) for value in (sent.top_p, sent.min_p, sent.repetition_penalty)] == [0.9, 0.1, 1.5]
    assert (sent.presence_penalty, sent.frequency_penalty, dict(sent.logit_bias)) == (1, -1, {5: 3})
    assert (list(sent.stop_token_ids), sent.ignore_eos, request.priority, request.eos_token_id) == ([9], True, 3, EOS)


async def test_response_format_reaches_the_engine(http, engine):
    schema = {"type": "object"}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}

    await http.post("/v1/completions", json={"prompt": "hi", "response_format": form})

    assert json.loads(engine.requests[0].sampling_params.structured_outputs.json_schema) == schema


async def test_chat_without_max_tokens_may_fill_the_context(http, engine):
    engine.reply = lambda _, position: EOS

    await http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]})

    [request] = engine.requests
    assert request.sampling_params.max_tokens == 512 - len(request.prompt_token_ids) // 4


async def test_generation_config_gives_the_default_temperature(tokenizer, engine, serve_frontend):
    tokenizer.generation_config = '{"temperature": 0.5}'
    async with serve_frontend() as frontend:
        await frontend.http.post("/v1/completions", json={"prompt": "hi"})
        await frontend.http.post("/v1/completions", json={"prompt": "hi", "temperature": 0})

    assert [request.sampling_params.temperature for request in engine.requests] == [0.5, 0.0]


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
