"""The Responses API on a failing store: refused in time, never lost, and as before after the fault."""

import asyncio
import json
import sqlite3

import pytest

from tests.frontend.fakes import TEXT
from tetrad.frontend.api.http.responses import database

BODY = {"input": "hi", "max_output_tokens": 3}
BACKGROUND = BODY | {"background": True}
# A response that is much larger than what is stored at its beginning.
LONG = {"max_output_tokens": 100, "include": ["message.output_text.logprobs"], "top_logprobs": 5}


class Disk:
    """A disk for SQLite files that can be full: then no database on it grows, and no page of one is written."""

    def __init__(self):
        self.is_full = False

    def connect(self, *args, **options):
        disk = self

        class Connection(sqlite3.Connection):
            def execute(self, sql, *parameters):
                # 1: fewer than there are, which SQLite takes for as many as there are.
                super().execute(f"PRAGMA max_page_count = {1 if disk.is_full else 1 << 30}")
                return super().execute(sql, *parameters)

        connection = sqlite3.connect(*args, **options, factory=Connection)
        sqlite3.Connection.execute(connection, "PRAGMA page_size = 512")  # less than a response: it needs further pages
        return connection


class FaultyStore:
    """A file of responses with one fault. `large` makes an input that needs room."""

    large = "x" * 300

    def __init__(self, path, disk):
        self.path, self._disk = path, disk
        self._holder = None

    def begin(self, fault):
        if fault == "full":
            self._disk.is_full = True
        elif fault == "corrupt":
            self.path.write_bytes(b"no database " * 1000)
        else:
            self._holder = sqlite3.connect(self.path, isolation_level=None)
            self._holder.execute("BEGIN EXCLUSIVE")

    def end(self):
        self._disk.is_full = False
        if self._holder is not None:
            self._holder.close()
        elif self.path.exists() and self.path.read_bytes()[:2] == b"no":
            self.path.unlink()


@pytest.fixture
def disk(monkeypatch):
    disk = Disk()
    connections = type("sqlite3", (), {**vars(sqlite3), "connect": staticmethod(disk.connect)})
    monkeypatch.setattr(database, "sqlite3", connections)
    return disk


@pytest.fixture
def impatient(monkeypatch):
    """Wait for a locked file only as long as it takes to be refused."""
    monkeypatch.setattr(database, "_PATIENCE_S", 0.1)


@pytest.fixture
def store(tmp_path, disk):
    store = FaultyStore(tmp_path / "responses.sqlite3", disk)
    yield store
    store.end()


@pytest.fixture
async def frontend(serve_frontend, store):
    async with serve_frontend(responses_store=str(store.path)) as running:
        yield running


async def until_status(http, response_id, status):
    async with asyncio.timeout(10):
        while (answer := (await http.get(f"/v1/responses/{response_id}")).json()).get("status") != status:
            pass
    return answer


FAULTS = pytest.mark.parametrize("fault", ["full", "corrupt", "locked"])


@pytest.mark.usefixtures("impatient")
@FAULTS
async def test_in_the_background_nothing_begins_that_could_not_be_read_later(http, engine, store, fault):
    engine.pause()
    store.begin(fault)

    refused = await http.post("/v1/responses", json=BACKGROUND | {"input": store.large})
    store.end()
    # It was given up in the engine, or before it was sent.
    await engine.until(lambda: len(engine.aborted) == len(engine.requests))
    await engine.allow(None)
    taken = await http.post("/v1/responses", json=BACKGROUND)

    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
    assert str(store.path) in refused.json()["error"]["message"]
    assert "retry-after" in refused.headers
    assert (await until_status(http, taken.json()["id"], "incomplete"))["output"][0]["content"][0]["text"] == TEXT[:3]


@pytest.mark.usefixtures("impatient")
@FAULTS
async def test_whoever_waits_for_a_response_gets_it_and_reads_that_it_is_not_kept(http, store, fault):
    store.begin(fault)

    whole = await http.post("/v1/responses", json=BODY | {"input": store.large})
    stream = await http.post("/v1/responses", json=BODY | {"input": store.large, "stream": True})

    last = json.loads(stream.text.strip().rsplit("data: ", 1)[1])
    assert (whole.status_code, whole.json()["store"]) == (200, False)
    assert (last["type"], last["response"]["store"]) == ("response.incomplete", False)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", ["full", "locked"])
async def test_a_response_that_is_complete_while_the_store_is_of_no_use_is_saved_when_it_is(
    http, engine, store, serve_frontend, fault
):
    engine.pause()
    created = (await http.post("/v1/responses", json=BACKGROUND | LONG)).json()
    store.begin(fault)
    await engine.allow(None)
    unsaved = await until_status(http, created["id"], "incomplete")
    store.end()

    async with serve_frontend(responses_store=str(store.path)) as other:
        saved = await until_status(other.http, created["id"], "incomplete")

    assert saved == unsaved
    assert len(saved["output"][0]["content"][0]["logprobs"]) == 100


@pytest.mark.usefixtures("impatient")
async def test_a_response_that_cannot_be_deleted_goes_on(http, engine, store):
    engine.pause()
    created = (await http.post("/v1/responses", json=BACKGROUND)).json()
    store.begin("locked")

    refused = await http.delete(f"/v1/responses/{created['id']}")
    store.end()
    await engine.allow(None)

    assert refused.status_code == 503
    assert (await until_status(http, created["id"], "incomplete"))["id"] == created["id"]


async def test_a_locked_file_holds_up_nobody_who_does_not_write(http, store):
    kept = (await http.post("/v1/responses", json=BODY)).json()
    store.begin("locked")
    writing = [asyncio.create_task(http.post("/v1/responses", json=BACKGROUND)) for _ in range(8)]
    await asyncio.sleep(0)

    async with asyncio.timeout(5):
        read = await http.get(f"/v1/responses/{kept['id']}")
        answered = await http.post("/v1/responses", json=BODY | {"store": False})
        refused = await asyncio.gather(*writing)

    assert (read.json(), answered.status_code) == (kept, 200)
    assert [each.status_code for each in refused] == [503] * 8


async def test_a_deleted_response_stays_deleted_whatever_happens_beside_it(frontend, serve_frontend, engine, store):
    """Another frontend, which shares the file, cancels or reads it in the same moment, or it is completed."""
    async with serve_frontend(responses_store=str(store.path)) as other:
        for number in range(15):
            engine.pause()
            created = (await frontend.http.post("/v1/responses", json=BACKGROUND)).json()
            url = f"/v1/responses/{created['id']}"
            beside = [each.http.post(f"{url}/cancel") for each in (other, frontend)] + [other.http.get(url)]
            if number % 2:
                beside.append(engine.allow(None))

            deleted, *_ = await asyncio.gather(frontend.http.delete(url), *beside)

            later = await asyncio.gather(other.http.get(url), frontend.http.get(url), other.http.delete(url))
            assert deleted.status_code == 200
            assert [each.status_code for each in later] == [404, 404, 404]


async def test_a_response_that_is_deleted_while_its_cancellation_is_saved_is_not_found(http, engine, store):
    """Either may be the first. No answer says that the store cannot be used."""
    for _ in range(10):
        engine.pause()
        url = f"/v1/responses/{(await http.post('/v1/responses', json=BACKGROUND)).json()['id']}"
        store.begin("locked")
        answers = [asyncio.create_task(each) for each in (http.post(f"{url}/cancel"), http.delete(url))]
        await asyncio.sleep(0.01)
        store.end()

        cancelled, deleted = await asyncio.gather(*answers)
        assert (deleted.status_code, cancelled.status_code) in [(200, 200), (200, 404)]


async def test_bytes_are_bounded(serve_frontend, store):
    async with serve_frontend(responses_store=str(store.path), responses_store_max_bytes=64 << 10) as frontend:
        metadata = {str(number): "x" * 500 for number in range(16)}
        made = [(await frontend.http.post("/v1/responses", json=BODY | {"metadata": metadata})).json()["id"] for _ in range(12)]
        found = [(await frontend.http.get(f"/v1/responses/{each}")).status_code for each in (made[0], made[-1])]

    assert found == [404, 200]
    assert store.path.stat().st_size < 100_000


@pytest.mark.usefixtures("impatient")
async def test_cancelling_while_the_store_is_of_no_use_ends_the_work_and_says_that_it_is_not_saved(
    http, engine, store, serve_frontend
):
    engine.pause()
    created = (await http.post("/v1/responses", json=BACKGROUND)).json()
    store.begin("locked")

    refused = await http.post(f"/v1/responses/{created['id']}/cancel")
    await engine.allow(None)
    await engine.until(lambda: engine.aborted)
    read = await http.get(f"/v1/responses/{created['id']}")
    store.end()

    assert (refused.status_code, read.json()["status"]) == (503, "cancelled")
    async with serve_frontend(responses_store=str(store.path)) as other:
        await until_status(other.http, created["id"], "cancelled")
