"""A model that is unloaded: the calls that already use it end within the drain time, and the rest fail."""

import asyncio
import json

from tests.frontend import fakes
from tests.frontend.llm.second_model import LOAD, OTHER, UNLOAD, completed, entry, loaded


async def events(frontend, model, num_tokens):
    """Return the texts of a streamed completion, and its errors."""
    texts, errors = [], []
    body = {"model": model, "prompt": "hi", "max_tokens": num_tokens, "stream": True}
    async with frontend.http.stream("POST", "/v1/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                errors += [event["error"]] if "error" in event else []
                texts += [choice["text"] for choice in event.get("choices", ())]
    return "".join(texts), errors


async def until_unknown(frontend, model):
    """Wait until requests for a model are refused as for an unknown one; return that answer."""
    async with asyncio.timeout(60):
        while (answer := await frontend.http.get(f"/v1/models/{model}")).status_code != 404:  # noqa: ASYNC110 - HTTP tells nobody
            await asyncio.sleep(0.005)
    return answer


async def unloading_amid_a_stream(frontend, second):
    """Load the second model, begin a stream of it, and unload the model; return the tasks of the stream and of the unload."""
    await loaded(frontend, second)
    streaming = asyncio.create_task(events(frontend, "other", len(OTHER)))
    await second[1].until(lambda: second[1].running)
    await second[1].take(3)
    return streaming, asyncio.create_task(frontend.http.post(UNLOAD, json={"model": "other"}))


async def test_a_running_stream_is_finished_whole_while_new_requests_are_refused(serve_frontend, second):
    second[1].pause()
    async with serve_frontend(served_model_names=("one",), drain_timeout_s=60.0) as frontend:
        streaming, unloading = await unloading_amid_a_stream(frontend, second)

        refused = await until_unknown(frontend, "other")
        taken = await frontend.http.post(LOAD, json=entry(second))
        load = (await frontend.http.get("/load")).json()
        assert not unloading.done()
        await second[1].allow(None)

        assert await streaming == (OTHER, [])
        assert (await unloading).status_code == 200
        assert "`other` does not exist" in refused.json()["error"]["message"]
        assert (taken.status_code, "is being unloaded" in taken.json()["error"]["message"]) == (409, True)
        assert load == {"server_load": 1}


async def test_a_call_that_has_found_its_model_and_sent_nothing_yet_is_finished(serve_frontend, second):
    tokenizer, _ = second
    async with serve_frontend(served_model_names=("one",), drain_timeout_s=60.0) as frontend:
        await loaded(frontend, second)
        tokenizer.hung.clear()
        before = len(tokenizer.text_sizes)
        asking = asyncio.create_task(completed(frontend, "other"))
        async with asyncio.timeout(60):
            while len(tokenizer.text_sizes) == before:  # noqa: ASYNC110 - the fake has no event for it
                await asyncio.sleep(0.005)
        unloading = asyncio.create_task(frontend.http.post(UNLOAD, json={"model": "other"}))
        await until_unknown(frontend, "other")
        tokenizer.hung.set()

        assert await asking == OTHER[:9]
        assert (await unloading).status_code == 200


async def test_requests_that_do_not_finish_within_the_drain_time_end_with_an_error(serve_frontend, second):
    second[1].pause()
    async with serve_frontend(served_model_names=("one",), drain_timeout_s=0.1) as frontend:
        await loaded(frontend, second)
        streaming = asyncio.create_task(events(frontend, "other", 50))
        await second[1].until(lambda: second[1].running)
        await second[1].take(3)

        answer = await frontend.http.post(UNLOAD, json={"model": "other"})
        _, [error] = await streaming

        assert answer.status_code == 200
        assert (error["message"], error["code"]) == ("The model `other` has been unloaded.", "unloaded")
        assert await completed(frontend, "one") == fakes.TEXT[:9]


async def test_a_frontend_that_ends_lets_the_requests_of_a_model_that_is_being_unloaded_finish(serve_frontend, second):
    second[1].pause()
    async with serve_frontend(served_model_names=("one",), drain_timeout_s=60.0) as frontend:
        streaming, unloading = await unloading_amid_a_stream(frontend, second)
        await until_unknown(frontend, "other")

        frontend.shutdown.set()
        await second[1].allow(None)

        assert await streaming == (OTHER, [])
        assert (await unloading).status_code == 200


async def test_a_call_that_waits_for_its_tokenizer_beyond_the_drain_time_ends_with_an_error(serve_frontend, second):
    tokenizer, _ = second
    async with serve_frontend(served_model_names=("one",), drain_timeout_s=0.1) as frontend:
        await loaded(frontend, second)
        tokenizer.hung.clear()
        before = len(tokenizer.text_sizes)
        asking = asyncio.create_task(frontend.http.post("/v1/completions", json={"model": "other", "prompt": "hi"}))
        async with asyncio.timeout(60):
            while len(tokenizer.text_sizes) == before:  # noqa: ASYNC110 - the fake has no event for it
                await asyncio.sleep(0.005)

        unloaded = await frontend.http.post(UNLOAD, json={"model": "other"})
        answer = await asking

    assert (unloaded.status_code, answer.status_code) == (200, 503)
    assert "the model was unloaded" in answer.json()["error"]["message"]
