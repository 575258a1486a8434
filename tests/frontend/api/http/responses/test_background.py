"""Responses in the background: queued, followed by number, cancelled, continued; lost with the server except for the record."""

import asyncio
import json

import openai
import pytest

from tests.frontend.fakes import EOS, TEXT
from tetrad.frontend.api.http.responses.background import BackgroundJob
from tetrad.frontend.api.http.responses.sqlite_store import SqliteStore
from tetrad.services.errors import Overloaded


@pytest.fixture
async def client(frontend):
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{frontend.port}/v1", api_key="none", max_retries=0) as opened:
        yield opened


async def when_final(client, response_id):
    async with asyncio.timeout(10):
        while (response := await client.responses.retrieve(response_id)).status in ("queued", "in_progress"):
            pass
    return response


async def test_a_background_response_is_queued_and_can_be_read_when_it_is_complete(client, engine):
    engine.pause()
    created = await client.responses.create(model="fake", input="hi", max_output_tokens=3, background=True)
    queued = await client.responses.retrieve(created.id)
    await engine.allow(None)

    done = await when_final(client, created.id)

    assert (created.status, queued.status, created.output, created.background) == ("queued", "queued", [], True)
    assert (done.output_text, done.status) == (TEXT[:3], "incomplete")


async def test_a_wrong_request_is_refused_at_once(client):
    with pytest.raises(openai.BadRequestError):
        await client.responses.create(model="fake", input="x" * 600, background=True)


async def test_a_read_never_goes_back_behind_an_earlier_one(client, engine, monkeypatch):
    """The response is completed while it is read from the store."""
    is_read, is_final, get = asyncio.Event(), asyncio.Event(), SqliteStore.get

    async def slow_get(store, response_id):
        stored = await get(store, response_id)
        if not is_read.is_set():
            is_read.set()
            await is_final.wait()
        return stored

    engine.pause()
    await engine.allow(1)
    stream = await client.responses.create(model="fake", input="hi", max_output_tokens=3, background=True, stream=True)
    async for event in stream:
        if event.type == "response.created":
            response_id = event.response.id
        if event.type == "response.in_progress":
            break
    earlier = await client.responses.retrieve(response_id)
    monkeypatch.setattr(SqliteStore, "get", slow_get)
    reading = asyncio.create_task(client.responses.retrieve(response_id))
    await is_read.wait()
    await engine.allow(None)
    await when_final(client, response_id)
    is_final.set()

    later = await reading
    await stream.close()

    assert (earlier.status, later.status) == ("in_progress", "incomplete")


async def test_what_the_engine_refuses_later_is_a_failed_response(client, engine):
    engine.reject = lambda _: Overloaded("full")

    created = await client.responses.create(model="fake", input="hi", background=True)

    failed = await when_final(client, created.id)
    assert (failed.status, failed.error.code, failed.error.message) == ("failed", "rate_limit_exceeded", "full")


async def test_a_background_response_can_be_cancelled(client, engine):
    engine.pause()
    created = await client.responses.create(model="fake", input="hi", background=True)

    cancelled = await client.responses.cancel(created.id)

    assert cancelled.status == "cancelled"
    assert (await client.responses.retrieve(created.id)).status == "cancelled"
    await engine.allow(None)
    await engine.until(lambda: engine.aborted)


async def test_a_cancelled_response_is_answered_as_such_though_it_is_deleted_at_once(client, engine, monkeypatch):
    """Another frontend, which saw it cancelled, deletes it before this one answers."""
    finish = SqliteStore.finish

    async def finish_and_delete(store, stored):
        present = await finish(store, stored)
        await store.delete(stored.response["id"])
        return present

    monkeypatch.setattr(SqliteStore, "finish", finish_and_delete)
    engine.pause()
    created = await client.responses.create(model="fake", input="hi", background=True)

    cancelled = await client.responses.cancel(created.id)

    assert cancelled.status == "cancelled"
    with pytest.raises(openai.NotFoundError):
        await client.responses.cancel(created.id)


async def test_a_response_that_is_deleted_before_it_is_cancelled_is_not_found(client, engine, monkeypatch):
    finish = SqliteStore.finish

    async def delete_and_finish(store, stored):
        await store.delete(stored.response["id"])
        return await finish(store, stored)

    monkeypatch.setattr(SqliteStore, "finish", delete_and_finish)
    engine.pause()
    created = await client.responses.create(model="fake", input="hi", background=True)

    with pytest.raises(openai.NotFoundError):
        await client.responses.cancel(created.id)


async def test_a_response_that_is_deleted_here_while_its_cancellation_is_saved_is_not_shown_as_running(
    client, engine, monkeypatch
):
    """The deletion stops the job of the response; the cancellation, saved before, still has its answer."""
    finish, has_saved, is_deleted = SqliteStore.finish, asyncio.Event(), asyncio.Event()

    async def finish_slowly(store, stored):
        present = await finish(store, stored)
        has_saved.set()
        await is_deleted.wait()
        return present

    monkeypatch.setattr(SqliteStore, "finish", finish_slowly)
    engine.pause()
    created = await client.responses.create(model="fake", input="hi", background=True)
    cancelling = asyncio.create_task(client.responses.cancel(created.id))
    await has_saved.wait()

    await client.responses.delete(created.id)
    is_deleted.set()

    assert (await cancelling).status == "cancelled"


async def test_a_background_response_shows_what_it_has_so_far_also_when_it_is_cancelled(client, engine):
    engine.pause()
    created = await client.responses.create(model="fake", input="hi", background=True)
    await engine.take(2)
    async with asyncio.timeout(10):
        while (begun := await client.responses.retrieve(created.id)).output_text != TEXT[:2]:
            pass

    cancelled = await client.responses.cancel(created.id)

    assert (begun.status, cancelled.status) == ("in_progress", "cancelled")
    assert (cancelled.output_text, cancelled.usage.output_tokens) == (TEXT[:2], 2)


async def test_cancelling_twice_or_too_late_changes_nothing(client):
    created = await client.responses.create(model="fake", input="hi", max_output_tokens=2, background=True)
    done = await when_final(client, created.id)

    assert (await client.responses.cancel(created.id)) == done


async def test_cancelling_while_the_end_is_saved_loses_no_event(client, monkeypatch):
    is_saving, is_cancelling = asyncio.Event(), asyncio.Event()
    finish, wait_settled = SqliteStore.finish, BackgroundJob.wait_settled

    async def save(store, stored):
        is_saving.set()
        await is_cancelling.wait()
        return await finish(store, stored)

    async def cancelled(job):
        is_cancelling.set()
        await wait_settled(job)

    monkeypatch.setattr(SqliteStore, "finish", save)
    monkeypatch.setattr(BackgroundJob, "wait_settled", cancelled)
    stream = await client.responses.create(model="fake", input="hi", max_output_tokens=3, background=True, stream=True)
    first = await anext(aiter(stream))
    await is_saving.wait()

    answer = await client.responses.cancel(first.response.id)

    rest = [event async for event in stream]
    assert answer.status == "incomplete"
    assert [event.sequence_number for event in rest] == list(range(1, len(rest) + 1))
    assert (rest[-1].type, rest[-1].response) == ("response.incomplete", answer)


async def test_only_background_responses_can_be_cancelled(client):
    created = await client.responses.create(model="fake", input="hi", max_output_tokens=2)

    with pytest.raises(openai.BadRequestError, match="synchronous"):
        await client.responses.cancel(created.id)


async def test_deleting_a_running_response_ends_it(client, engine):
    engine.pause()
    created = await client.responses.create(model="fake", input="hi", background=True)

    await client.responses.delete(created.id)

    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(created.id)
    await engine.allow(None)
    await engine.until(lambda: engine.aborted)


async def test_the_events_of_a_background_stream_have_a_beginning_and_an_end(client):
    stream = await client.responses.create(model="fake", input="hi", max_output_tokens=3, background=True, stream=True)

    events = [event async for event in stream]

    assert [event.type for event in events[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert events[-1].type == "response.incomplete"
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_a_stream_can_be_taken_up_where_it_was_left(client, engine):
    engine.pause()
    await engine.allow(2)
    stream = await client.responses.create(model="fake", input="hi", max_output_tokens=5, background=True, stream=True)
    seen = []
    async for event in stream:
        seen.append(event)
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    await engine.allow(None)

    rest = await client.responses.retrieve(seen[0].response.id, stream=True, starting_after=seen[-1].sequence_number)
    seen += [event async for event in rest]

    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert "".join(event.delta for event in seen if event.type == "response.output_text.delta") == TEXT[:5]
    assert seen[-1].type == "response.incomplete"
    # Once more, when it is complete: all of it, and nothing behind the end.
    again = await client.responses.retrieve(seen[0].response.id, stream=True)
    assert [event.type async for event in again] == [event.type for event in seen]
    after_end = await client.responses.retrieve(seen[0].response.id, stream=True, starting_after=len(seen))
    assert [event async for event in after_end] == []


async def test_a_response_that_was_not_streamed_has_no_events(client):
    created = await client.responses.create(model="fake", input="hi", max_output_tokens=2)

    with pytest.raises(openai.BadRequestError, match="events"):
        await client.responses.retrieve(created.id, stream=True)


async def test_a_background_response_can_be_continued_when_it_is_complete(client, engine):
    engine.reply = lambda prompt, position: b"ok"[position] if position < 2 else EOS
    engine.pause()
    first = await client.responses.create(model="fake", input="a", background=True)
    with pytest.raises(openai.BadRequestError, match="queued"):
        await client.responses.create(model="fake", input="b", previous_response_id=first.id)
    await engine.allow(None)
    await when_final(client, first.id)

    second = await client.responses.create(model="fake", input="b", previous_response_id=first.id)

    assert (second.status, second.output_text) == ("completed", "ok")


async def test_what_runs_at_a_shutdown_has_failed(serve_frontend, engine, tmp_path):
    path = str(tmp_path / "responses.sqlite3")
    engine.pause()
    async with serve_frontend(responses_store=path, drain_timeout_s=0.1) as frontend:
        created = (await frontend.http.post("/v1/responses", json={"input": "hi", "background": True})).json()

    async with serve_frontend(responses_store=path) as frontend:
        response = (await frontend.http.get(f"/v1/responses/{created['id']}")).json()

    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")


async def test_what_another_frontend_generates_can_be_read_cancelled_and_deleted(serve_frontend, engine, tmp_path):
    """As in a rolling restart, in which the predecessor still finishes what it has."""
    path = str(tmp_path / "responses.sqlite3")
    engine.pause()
    async with serve_frontend(responses_store=path) as old, serve_frontend(responses_store=path) as new:
        bodies = [{"input": "hi", "background": True, "max_output_tokens": 2}] * 3
        names = [(await old.http.post("/v1/responses", json=body)).json()["id"] for body in bodies]
        urls = read, cancelled, deleted = [f"/v1/responses/{name}" for name in names]
        seen = [(await new.http.get(url)).json()["status"] for url in urls]

        answer = (await new.http.post(f"{cancelled}/cancel")).json()
        await new.http.delete(deleted)
        await engine.allow(None)

        assert seen == ["queued"] * 3
        assert answer["status"] == "cancelled"
        async with asyncio.timeout(10):
            for url in urls:
                while (await old.http.get(url)).json().get("status") in ("queued", "in_progress"):
                    pass
        assert (await new.http.get(read)).json()["status"] == "incomplete"
        assert (await new.http.get(cancelled)).json()["status"] == "cancelled"
        assert (await new.http.get(deleted)).status_code == 404


@pytest.mark.parametrize(("method", "way"), [("POST", "/cancel"), ("DELETE", "")], ids=["cancelled", "deleted"])
async def test_a_generation_that_another_frontend_stops(serve_frontend, engine, tmp_path, method, way):
    """The engine would generate it for as long as its request allows, although nobody can read it."""
    path = str(tmp_path / "responses.sqlite3")
    engine.pause()
    async with serve_frontend(responses_store=path) as one, serve_frontend(responses_store=path) as other:
        created = (await one.http.post("/v1/responses", json={"input": "hi", "background": True})).json()
        await engine.until(lambda: engine.requests)

        await other.http.request(method, f"/v1/responses/{created['id']}{way}")

        await engine.until(lambda: engine.aborted)
        read = await one.http.get(f"/v1/responses/{created['id']}")
        assert read.json()["status"] == "cancelled" if way else read.status_code == 404


async def test_what_another_frontend_deleted_cannot_be_followed_either(serve_frontend, tmp_path):
    path = str(tmp_path / "responses.sqlite3")
    async with serve_frontend(responses_store=path) as one, serve_frontend(responses_store=path) as other:
        body = {"input": "hi", "background": True, "stream": True, "max_output_tokens": 2}
        stream = (await one.http.post("/v1/responses", json=body)).text
        url = f"/v1/responses/{json.loads(stream.splitlines()[1].removeprefix('data: '))['response']['id']}"
        followed = await one.http.get(url, params={"stream": True})

        elsewhere = await other.http.get(url, params={"stream": True})
        await other.http.delete(url)

        assert followed.text == stream
        assert "are not here: a frontend keeps those of the last 64 responses" in elsewhere.json()["error"]["message"]
        assert (await one.http.get(url, params={"stream": True})).status_code == 404


async def test_without_a_store_there_is_no_background(serve_frontend):
    async with serve_frontend(responses_store="none") as frontend:
        response = await frontend.http.post("/v1/responses", content=json.dumps({"input": "hi", "background": True}))

    assert (response.status_code, response.json()["error"]["param"]) == (400, "background")
