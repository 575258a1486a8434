"""The edge of HTTP: deadlines, admission and silent streams. Over real sockets."""

import asyncio
import json
import time

import anthropic
import openai
import pytest

from tests.frontend.fakes import TEXT

PROMPT = {"prompt": "hi", "max_tokens": 9}


# Deadlines


@pytest.mark.parametrize("value", ["soon", "0", "-1", "1e3", "0.0", "", "nan", "inf", "1,2", "99999999999"])
async def test_a_timeout_that_is_no_number_of_seconds_is_refused(http, value):
    response = await http.post("/v1/completions", json=PROMPT, headers={"X-Request-Timeout": value})

    assert response.status_code == 400
    assert "X-Request-Timeout must be a number of seconds" in response.json()["error"]["message"]


@pytest.mark.parametrize("fields", [{}, {"n": 3}, {"prompt": ["a", "b"]}])
async def test_a_request_that_is_late_gets_504_and_leaves_the_engine(http, engine, fields):
    engine.pause()

    response = await http.post("/v1/completions", json=PROMPT | fields, headers={"X-Request-Timeout": "0.2"})

    assert response.status_code == 504
    error = response.json()["error"]
    assert (error["code"], error["type"]) == ("deadline_exceeded", "server_error")
    assert "time limit of 0.2 s" in error["message"]
    await engine.until(lambda: len(engine.aborted) == len(engine.requests) > 0)


async def test_a_deadline_in_a_stream_is_an_error_event(frontend, engine):
    engine.pause()
    await engine.allow(2)
    async with frontend.http.stream(
        "POST", "/v1/completions", json=PROMPT | {"stream": True}, headers={"X-Request-Timeout": "0.5"}
    ) as response:
        text = (await response.aread()).decode()

    assert response.status_code == 200
    assert "time limit of 0.5 s" in text
    assert text.endswith("data: [DONE]\n\n")
    await engine.until(lambda: len(engine.aborted) == 1)


async def test_tokenizing_counts(http, tokenizer, engine, monkeypatch):
    async def stuck(request, context):
        await asyncio.Event().wait()

    monkeypatch.setattr(tokenizer, "Encode", stuck)
    await tokenizer.kill()
    await tokenizer.start()

    response = await http.post("/v1/completions", json=PROMPT, headers={"X-Request-Timeout": "0.3"})

    assert response.status_code == 504
    assert not engine.requests


@pytest.mark.parametrize(("given", "least"), [("5", 5), ("500", 60)])
async def test_the_engine_is_told_the_least_of_both_limits_counted_from_arrival(serve_frontend, engine, given, least):
    async with serve_frontend(request_timeout_s=60) as frontend:
        await frontend.http.post("/v1/completions", json=PROMPT, headers={"X-Request-Timeout": given})

    assert least - 1 < engine.requests[0].timeout_nanos / 1e9 <= least


@pytest.mark.parametrize("step_s", [-3600, 3600])
async def test_a_clock_that_is_set_while_a_request_runs_changes_nothing_in_its_deadline(http, engine, monkeypatch, step_s):
    clock = time.time
    engine.pause()
    asking = asyncio.create_task(http.post("/v1/completions", json=PROMPT, headers={"X-Request-Timeout": "20"}))
    await engine.until(lambda: engine.running)

    monkeypatch.setattr(time, "time", lambda: clock() + step_s)
    await engine.kill()
    await engine.start()
    await engine.allow(None)
    response = await asking

    assert response.status_code == 200
    first, second = [request.timeout_nanos / 1e9 for request in engine.requests]
    assert 10 < second < first <= 20


async def test_messages_show_the_deadline_in_their_own_form(http, engine):
    engine.pause()
    body = {"model": "fake", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}

    response = await http.post("/v1/messages", json=body, headers={"X-Request-Timeout": "0.2"})

    assert (response.status_code, response.json()["error"]["type"]) == (504, "timeout_error")
    refused = await http.post("/v1/messages", json=body, headers={"X-Request-Timeout": "x"})
    assert (refused.status_code, refused.json()["type"]) == (400, "error")


# Admission


async def test_too_many_requests_are_told_when_to_come_back_before_they_are_tokenized(serve_frontend, engine, tokenizer):
    engine.pause()
    async with serve_frontend(max_num_requests=2) as frontend:
        waiting = [asyncio.create_task(frontend.http.post("/v1/completions", json=PROMPT)) for _ in range(2)]
        await engine.until(lambda: len(engine.requests) == 2)
        encoded = tokenizer.num_encoded

        refused = [
            await frontend.http.post(path, content=b"not even read")
            for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
        ]
        await engine.allow(None)
        served = await asyncio.gather(*waiting)
        again = await frontend.http.post("/v1/completions", json=PROMPT)

    assert [response.status_code for response in refused] == [429] * 4
    assert all(1 <= int(response.headers["retry-after"]) <= 60 for response in refused)
    assert tokenizer.num_encoded == encoded + 1
    assert [response.status_code for response in (*served, again)] == [200] * 3


async def test_prompts_of_too_many_tokens_wait_outside(serve_frontend, engine):
    engine.pause()
    async with serve_frontend(max_num_queued_tokens=100) as frontend:
        waiting = asyncio.create_task(frontend.http.post("/v1/completions", json=PROMPT | {"prompt": "x" * 80}))
        await engine.until(lambda: len(engine.requests) == 1)

        refused = await frontend.http.post("/v1/completions", json=PROMPT | {"prompt": "y" * 200})
        small = asyncio.create_task(frontend.http.post("/v1/completions", json=PROMPT))
        await engine.until(lambda: len(engine.requests) == 2)
        await engine.allow(None)
        await asyncio.gather(waiting, small)

    assert refused.status_code == 429
    assert "Prompts of 80 tokens wait" in refused.json()["error"]["message"]


@pytest.mark.parametrize("limit", [{"max_num_requests": 3}, {"max_num_queued_tokens": 40}], ids=["requests", "tokens"])
async def test_a_call_with_more_prompts_than_the_limit_is_taken_if_there_is_no_other(serve_frontend, engine, limit):
    async with serve_frontend(**limit) as frontend:
        first = await frontend.http.post("/v1/completions", json=PROMPT | {"prompt": ["x" * 20] * 20})
        wrong = await frontend.http.post("/v1/completions", json=PROMPT | {"prompt": ["x"] * 20 + ["y" * 100_000]})
        again = await frontend.http.post("/v1/completions", json=PROMPT | {"prompt": ["x" * 20] * 20})
        engine.pause()
        running = asyncio.create_task(frontend.http.post("/v1/completions", json=PROMPT | {"prompt": "x" * 39}))
        await engine.until(lambda: engine.running)
        refused = await frontend.http.post("/v1/completions", json=PROMPT | {"prompt": ["x" * 20] * 20})
        await engine.allow(None)
        last = await running

    assert [each.status_code for each in (first, wrong, again, refused, last)] == [200, 400, 200, 429, 200]
    assert len(first.json()["choices"]) == 20


async def test_what_ends_in_any_way_is_no_longer_counted(serve_frontend, engine):
    async with serve_frontend(max_num_requests=1) as frontend:
        engine.pause()
        late = await frontend.http.post("/v1/completions", json=PROMPT, headers={"X-Request-Timeout": "0.1"})
        wrong = await frontend.http.post("/v1/completions", json=PROMPT | {"logit_bias": {"99999": 1}})
        leaving = asyncio.create_task(frontend.http.post("/v1/completions", json=PROMPT))
        await engine.until(lambda: len(engine.requests) == 2)
        leaving.cancel()
        await engine.until(lambda: len(engine.aborted) == 2)
        await engine.allow(None)
        last = await frontend.http.post("/v1/completions", json=PROMPT)

    assert [late.status_code, wrong.status_code, last.status_code] == [504, 400, 200]


# Streams with nothing to say


async def test_a_request_that_waits_gets_its_status_and_comments(serve_frontend, engine):
    engine.pause()
    async with (
        serve_frontend(sse_keep_alive_s=0.05) as frontend,
        frontend.http.stream("POST", "/v1/completions", json=PROMPT | {"stream": True}) as response,
    ):
        assert response.status_code == 200
        lines = response.aiter_lines()
        comments = [await anext(lines) for _ in range(4)]
        await engine.allow(None)
        chunks = [json.loads(line[6:]) async for line in lines if line.startswith("data: {")]

    assert comments == [": keep-alive", "", ": keep-alive", ""]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == TEXT[:9]


async def test_the_official_clients_take_no_notice_of_keep_alives(serve_frontend, engine):
    engine.pause()
    messages = [{"role": "user", "content": "hi"}]
    async with serve_frontend(sse_keep_alive_s=0.02) as frontend:
        url = f"http://127.0.0.1:{frontend.port}"
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
            chat = await client.chat.completions.create(model="fake", messages=messages, max_tokens=9, stream=True)
            responses = await client.responses.create(model="fake", input="hi", max_output_tokens=9, stream=True)
            async with anthropic.AsyncAnthropic(base_url=url, api_key="none") as other:
                theirs = await other.messages.create(model="fake", messages=messages, max_tokens=9, stream=True)
                await engine.allow(None)
                said = "".join([chunk.choices[0].delta.content or "" async for chunk in chat if chunk.choices])
                events = [event async for event in responses]
                blocks = "".join([e.delta.text async for e in theirs if e.type == "content_block_delta"])

    assert said == blocks == TEXT[:9]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == TEXT[:9]


async def test_a_client_that_leaves_before_the_first_token_but_behind_the_status_ends_its_request(serve_frontend, engine):
    engine.pause()
    async with serve_frontend(sse_keep_alive_s=0.05) as frontend:
        async with frontend.http.stream("POST", "/v1/completions", json=PROMPT | {"stream": True}) as response:
            assert response.status_code == 200

        await engine.until(lambda: len(engine.aborted) == 1)


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/v1/completions", PROMPT, "data: {"),
        ("/v1/responses", {"input": "hi"}, "event: error"),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "model": "fake"}, "event: error"),
    ],
)
async def test_errors_behind_the_status_have_the_form_of_their_api(serve_frontend, engine, path, body, expected):
    engine.pause()
    async with serve_frontend(sse_keep_alive_s=0.05) as frontend:
        headers = {"X-Request-Timeout": "0.3"}
        async with frontend.http.stream("POST", path, json=body | {"stream": True}, headers=headers) as response:
            text = (await response.aread()).decode()

    assert response.status_code == 200
    assert "time limit of 0.3 s" in text
    assert expected in text
