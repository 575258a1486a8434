"""The store of responses: survives a restart, is bounded, follows chains, and never fails a response by failing itself."""

import asyncio
import contextlib
import sqlite3
import subprocess
import sys

import pytest

from tetrad.frontend.http.responses_api.store import MEMORY, NoStore, SqliteStore, StoredResponse, history_of, open_store
from tetrad.services.errors import InvalidRequest, NotFound, Unavailable


def item(text):
    return {"id": text, "type": "message", "content": text}


def stored(name, previous=None, status="completed"):
    response = {"id": name, "previous_response_id": previous, "status": status, "error": None, "output": [item(f"{name} out")]}
    return StoredResponse(response, [item(f"{name} in")])


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
async def open_file(tmp_path):
    """`open_file()` gives a store on the same file each time; all are closed at the end."""
    opened = []

    def open_(**changes):
        fields = {"max_count": 100, "max_age_s": 100.0}
        opened.append(SqliteStore(str(tmp_path / "deep" / "store.sqlite3"), **(fields | changes)))
        return opened[-1]

    yield open_
    for store in opened:
        await store.close()


async def kept(store, *names):
    """Return those of the names that are kept."""
    found = []
    for name in names:
        try:
            found.append((await store.get(name)).response["id"])
        except NotFound:
            continue
    return found


async def test_a_response_survives_a_restart(open_file):
    first = open_file()
    await first.save(stored("a"))
    await first.close()

    assert await open_file().get("a") == stored("a")


async def test_nobody_else_on_the_machine_can_read_responses(open_file, tmp_path):
    await open_file().save(stored("a"))

    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 1, "the log that is written ahead is a file of its own"
    assert [path.name for path in files if path.stat().st_mode & 0o077] == []


async def test_a_newer_state_replaces_the_older(open_file):
    store = open_file()
    await store.save(stored("a", status="queued"))

    await store.save(stored("a"))

    assert (await store.get("a")).response["status"] == "completed"


@pytest.mark.parametrize("status", ["queued", "in_progress"])
async def test_what_was_unfinished_at_a_crash_has_failed(open_file, status):
    first = open_file()
    await first.save(stored("a", status=status))
    await first.save(stored("b"))
    await first.close()

    second = open_file()

    response = (await second.get("a")).response
    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
    assert (await second.get("b")).response["status"] == "completed"


async def test_a_chain_is_the_conversation_oldest_first(open_file):
    store = open_file()
    for each in (stored("a"), stored("b", "a"), stored("other"), stored("c", "b")):
        await store.save(each)

    items = history_of(await store.chain("c"))

    assert [each["id"] for each in items] == ["a in", "a out", "b in", "b out", "c in", "c out"]


async def test_a_chain_with_a_gap_names_it(open_file):
    store = open_file()
    for each in (stored("a"), stored("b", "a"), stored("c", "b")):
        await store.save(each)
    await store.delete("a")

    with pytest.raises(NotFound, match="'a'"):
        await store.chain("c")


async def test_an_unfinished_response_cannot_be_continued(open_file):
    store = open_file()
    await store.save(stored("a", status="in_progress"))

    with pytest.raises(InvalidRequest, match="in_progress"):
        history_of(await store.chain("a"))


async def test_the_oldest_go_when_there_are_too_many(open_file):
    store = open_file(max_count=2)
    for name in "abc":
        await store.save(stored(name))

    assert await kept(store, "a", "b", "c") == ["b", "c"]


async def test_the_old_go_when_their_time_is_over(open_file):
    clock = Clock()
    store = open_file(max_age_s=10.0, now=clock)
    await store.save(stored("a"))
    clock.now += 11
    await store.save(stored("b"))

    assert await kept(store, "a", "b") == ["b"]


async def test_what_is_not_kept_is_not_found(open_file):
    store = open_file()

    for call in (store.get, store.chain, store.delete):
        with pytest.raises(NotFound, match="'x'"):
            await call("x")


async def test_a_store_that_cannot_be_opened_fails_no_response(tmp_path):
    (tmp_path / "file").write_text("no directory")
    store = SqliteStore(str(tmp_path / "file" / "store.sqlite3"), max_count=1, max_age_s=1.0)

    await store.save(stored("a"))

    with pytest.raises(Unavailable, match="cannot be used"):
        await store.get("a")
    await store.close()


async def test_a_file_that_is_no_database_is_left_alone(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("my notes " * 100)
    store = SqliteStore(str(path), max_count=1, max_age_s=1.0)

    with pytest.raises(Unavailable, match="not a database"):
        await store.get("a")
    await store.close()
    assert path.read_text() == "my notes " * 100


async def test_a_store_in_memory_keeps_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = open_store(MEMORY, max_count=2, max_age_s=10.0)
    await store.save(stored("a"))

    assert await store.get("a") == stored("a")
    await store.close()
    assert list(tmp_path.iterdir()) == []


async def test_without_a_store_nothing_is_found():
    store = open_store("none", max_count=2, max_age_s=10.0)
    await store.save(stored("a"))

    assert isinstance(store, NoStore)
    for call in (store.get, store.chain, store.delete):
        with pytest.raises(NotFound):
            await call("a")
    await store.close()


async def test_by_default_the_file_is_in_the_cache_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("TETRAD_CACHE_DIR", str(tmp_path))
    store = open_store("", max_count=2, max_age_s=10.0)

    await store.save(stored("a"))

    await store.close()
    assert (tmp_path / "responses.sqlite3").is_file()


async def test_what_a_living_frontend_generates_has_not_failed_for_another(open_file):
    """In a rolling restart the successor opens the file while its predecessor still generates."""
    old, new = open_file(), open_file()
    await old.save(stored("a", status="queued"))

    seen = (await new.get("a")).response["status"]
    await old.save(stored("a"))

    assert seen == "queued"
    assert (await new.get("a")).response["status"] == "completed"


async def test_what_a_frontend_leaves_unfinished_has_failed_for_one_that_lives_on(open_file):
    old, new = open_file(), open_file()
    await old.save(stored("a", status="in_progress"))
    await new.save(stored("b", status="in_progress"))
    await new.get("a")

    await old.close()

    assert (await new.get("a")).response["status"] == "failed"
    assert (await new.chain("a"))[0].response["status"] == "failed"
    assert (await new.get("b")).response["status"] == "in_progress", "its own"


async def test_what_another_frontend_deletes_or_cancels_meanwhile_stays_so(open_file):
    old, new = open_file(), open_file()
    for name in ("deleted", "cancelled"):
        await old.save(stored(name, status="queued"))
    await new.delete("deleted")
    await new.save(stored("cancelled", status="cancelled"))

    for name in ("deleted", "cancelled"):
        await old.save(stored(name))

    assert await kept(new, "deleted") == []
    assert (await old.get("cancelled")).response["status"] == "cancelled"


async def test_what_is_complete_is_not_cancelled_by_another_frontend_that_comes_too_late(open_file):
    old, new = open_file(), open_file()
    await old.save(stored("a", status="queued"))
    await old.save(stored("a"))

    await new.save(stored("a", status="cancelled"))

    assert (await new.get("a")).response["status"] == "completed"


async def test_what_is_pushed_out_while_it_is_generated_is_kept_when_it_is_complete(open_file):
    store = open_file(max_count=1)
    await store.save(stored("a", status="queued"))
    await store.save(stored("b"))

    await store.save(stored("a"))

    assert await kept(store, "a", "b") == ["a"]


WRITER = """
import asyncio, sys
from tetrad.frontend.http.responses_api.store import SqliteStore, StoredResponse

async def main(path, name):
    store = SqliteStore(path, max_count=10_000, max_age_s=1000.0)
    print("up", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    for number in range(100):
        for status in ("queued", "completed"):
            response = {"id": f"{name}{number}", "previous_response_id": None, "status": status, "output": []}
            await store.save(StoredResponse(response, []))
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""


def run_writers(path) -> list[str]:
    """Let two processes make and write one file at the same time; return what they print: a response that is not stored."""
    command, pipe = [sys.executable, "-c", WRITER, str(path)], subprocess.PIPE
    writers = [subprocess.Popen([*command, name], stdin=pipe, stdout=pipe, text=True) for name in "ab"]
    for writer in writers:
        assert writer.stdout.readline() == "up\n"
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    return [writer.communicate(timeout=30)[0] for writer in writers]


async def test_processes_that_write_at_once_neither_lose_nor_break_anything(open_file, tmp_path):
    (tmp_path / "deep").mkdir()
    path = tmp_path / "deep" / "store.sqlite3"

    assert await asyncio.to_thread(run_writers, path) == ["", ""]

    names = [f"{name}{number}" for name in "ab" for number in range(100)]
    assert len(await kept(open_file(max_count=10_000), *names)) == len(names)
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert database.execute("SELECT * FROM owners").fetchall() == []
