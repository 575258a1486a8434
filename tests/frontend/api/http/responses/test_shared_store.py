"""The store of responses that several frontends share: unfinished responses of others, first decisions, locks."""

import asyncio
import contextlib
import sqlite3
import subprocess
import sys

import pytest

from tests.frontend.api.http.responses.stored_responses import kept, stored
from tetrad.frontend.api.http.responses import database
from tetrad.services.errors import Unavailable


async def test_what_a_living_frontend_generates_has_not_failed_for_another(open_file):
    """In a rolling restart the successor opens the file while its predecessor still generates."""
    old, new = open_file(), open_file()
    await old.create(stored("a", status="queued"))

    seen = (await new.get("a")).response["status"]
    await old.finish(stored("a"))

    assert seen == "queued"
    assert (await new.get("a")).response["status"] == "completed"


async def test_what_a_frontend_leaves_unfinished_has_failed_for_one_that_lives_on(open_file):
    old, new = open_file(), open_file()
    await old.create(stored("a", status="in_progress"))
    await new.create(stored("b", status="in_progress"))
    await new.get("a")

    await old.close()

    assert (await new.get("a")).response["status"] == "failed"
    assert (await new.chain("a"))[0].response["status"] == "failed"
    assert (await new.get("b")).response["status"] == "in_progress", "its own"


async def test_what_a_frontend_left_unfinished_goes_like_all_others(open_file):
    ended, living = open_file(), open_file(max_count=2)
    await ended.create(stored("a", status="in_progress"))
    await living.create(stored("b"))
    await ended.close()

    for name in ("c", "d", "e"):
        await living.create(stored(name))

    assert await kept(living, *"abcde") == ["d", "e"]


async def test_what_another_frontend_deletes_or_cancels_meanwhile_stays_so(open_file):
    old, new = open_file(), open_file()
    for name in ("deleted", "cancelled"):
        await old.create(stored(name, status="queued"))
    await new.delete("deleted")
    await new.cancel("cancelled")

    for name in ("deleted", "cancelled"):
        await old.finish(stored(name))

    assert await kept(new, "deleted") == []
    assert (await old.get("cancelled")).response["status"] == "cancelled"


async def test_what_is_complete_is_not_cancelled_by_another_frontend_that_comes_too_late(open_file):
    old, new = open_file(), open_file()
    await old.create(stored("a", status="queued"))
    await old.finish(stored("a"))

    cancelled = await new.cancel("a")

    assert cancelled.response["status"] == "completed"
    assert (await new.get("a")).response["status"] == "completed"


async def test_what_is_generated_is_not_pushed_out_and_the_newest_when_it_is_complete(open_file):
    store = open_file(max_count=1)
    await store.create(stored("a", status="queued"))
    await store.create(stored("b"))
    both = await kept(store, "a", "b")

    await store.finish(stored("a"))

    assert both == ["a", "b"]
    assert await kept(store, "a", "b") == ["a"]


async def test_whoever_deletes_or_cancels_first_decides(open_file):
    """Two frontends whose users act at the same time: what is deleted never comes back, what is final never changes."""
    one, other = open_file(), open_file()
    for number in range(30):
        name = str(number)
        await one.create(stored(name, status="queued"))

        await asyncio.gather(
            one.finish(stored(name, status="cancelled")), one.delete(name), other.cancel(name), return_exceptions=True
        )

        assert await kept(one, name) == await kept(other, name) == []


async def test_a_lock_holds_up_only_those_who_write_and_those_not_for_long(open_file, tmp_path):
    store = open_file()
    await store.create(stored("a"))
    with contextlib.closing(sqlite3.connect(tmp_path / "deep" / "store.sqlite3", isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        writing = [asyncio.create_task(store.create(stored(str(number)))) for number in range(20)]
        await asyncio.sleep(0)

        read = await store.get("a")
        num_done = sum(task.done() for task in writing)
        # They all wait for one second together, not for five each.
        async with asyncio.timeout(20):
            refused = await asyncio.gather(*writing, return_exceptions=True)

    await store.create(stored("b"))
    assert (read, num_done) == (stored("a"), 0)
    assert {str(each) for each in refused if "has held its lock for more than 1 s" in str(each)} == {str(refused[0])}
    assert await kept(store, "a", "0", "b") == ["a", "b"]


async def test_a_short_lock_is_waited_for_also_some_time_after_a_long_one(open_file, tmp_path, monkeypatch):
    monkeypatch.setattr(database, "_PATIENCE_S", 0.1)
    store = open_file()
    await store.create(stored("a"))
    with contextlib.closing(sqlite3.connect(tmp_path / "deep" / "store.sqlite3", isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(Unavailable, match="has held its lock"):
            await store.create(stored("b"))
        holder.execute("COMMIT")
        await asyncio.sleep(0.15)

        holder.execute("BEGIN EXCLUSIVE")
        writing = asyncio.create_task(store.create(stored("c")))
        await asyncio.sleep(0.02)
        holder.execute("COMMIT")
        await writing

    assert await kept(store, "a", "b", "c") == ["a", "c"]


WRITER = """
import asyncio, sys
from tetrad.frontend.api.http.responses.sqlite_store import SqliteStore
from tetrad.frontend.api.http.responses.store import StoredResponse

async def main(path, name):
    store = SqliteStore(path, max_count=10_000, max_bytes=1 << 30, max_age_s=1000.0)
    print("up", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    for number in range(100):
        for status, save in (("queued", store.create), ("completed", store.finish)):
            response = {"id": f"{name}{number}", "previous_response_id": None, "status": status, "output": []}
            await save(StoredResponse(response, []))
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
