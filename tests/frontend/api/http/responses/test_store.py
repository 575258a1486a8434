"""The store of responses: survives a restart, is bounded, follows chains; its own failure fails no response."""

import asyncio
import contextlib
import sqlite3
import subprocess
import sys

import pytest

from tetrad.frontend.api.http.responses import database
from tetrad.frontend.api.http.responses.database import MEMORY
from tetrad.frontend.api.http.responses.sqlite_store import SqliteStore, open_store
from tetrad.frontend.api.http.responses.store import NoStore, StoredResponse, history_of
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
        fields = {"max_count": 100, "max_bytes": 1 << 20, "max_age_s": 100.0}
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
    await first.create(stored("a"))
    await first.close()

    assert await open_file().get("a") == stored("a")


async def test_nobody_else_on_the_machine_can_read_responses(open_file, tmp_path):
    await open_file().create(stored("a"))

    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 1, "the log that is written ahead is a file of its own"
    assert [path.name for path in files if path.stat().st_mode & 0o077] == []


async def test_a_newer_state_replaces_the_older(open_file):
    store = open_file()
    await store.create(stored("a", status="queued"))

    await store.finish(stored("a"))

    assert (await store.get("a")).response["status"] == "completed"


@pytest.mark.parametrize("status", ["queued", "in_progress"])
async def test_what_was_unfinished_at_a_crash_has_failed(open_file, status):
    first = open_file()
    await first.create(stored("a", status=status))
    await first.create(stored("b"))
    await first.close()

    second = open_file()

    response = (await second.get("a")).response
    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
    assert (await second.get("b")).response["status"] == "completed"


async def test_a_chain_is_the_conversation_oldest_first(open_file):
    store = open_file()
    for each in (stored("a"), stored("b", "a"), stored("other"), stored("c", "b")):
        await store.create(each)

    items = history_of(await store.chain("c"))

    assert [each["id"] for each in items] == ["a in", "a out", "b in", "b out", "c in", "c out"]


async def test_a_chain_with_a_gap_names_it(open_file):
    store = open_file()
    for each in (stored("a"), stored("b", "a"), stored("c", "b")):
        await store.create(each)
    await store.delete("a")

    with pytest.raises(NotFound, match="'a'"):
        await store.chain("c")


async def test_an_unfinished_response_cannot_be_continued(open_file):
    store = open_file()
    await store.create(stored("a", status="in_progress"))

    with pytest.raises(InvalidRequest, match="in_progress"):
        history_of(await store.chain("a"))


async def test_the_oldest_go_when_there_are_too_many(open_file):
    store = open_file(max_count=2)
    for name in "abc":
        await store.create(stored(name))

    assert await kept(store, "a", "b", "c") == ["b", "c"]


async def test_none_go_before_there_are_too_many(open_file):
    """Neither deleted responses nor the earlier states of finished ones count."""
    store = open_file(max_count=3)
    await store.create(stored("oldest"))
    for number in range(5):
        await store.create(stored(str(number)))
        await store.delete(str(number))
    for name in ("a", "b"):
        await store.create(stored(name, status="queued"))
        await store.finish(stored(name))

    assert await kept(store, "oldest", "a", "b") == ["oldest", "a", "b"]


async def test_the_old_go_when_their_time_is_over(open_file):
    clock = Clock()
    store = open_file(max_age_s=10.0, now=clock)
    await store.create(stored("a"))
    clock.now += 11
    await store.create(stored("b"))

    assert await kept(store, "a", "b") == ["b"]


async def test_what_is_not_kept_is_not_found(open_file):
    store = open_file()

    for call in (store.get, store.chain, store.cancel, store.delete):
        with pytest.raises(NotFound, match="'x'"):
            await call("x")


async def test_a_store_that_cannot_be_opened_says_so_to_whoever_writes_or_reads(tmp_path):
    (tmp_path / "file").write_text("no directory")
    store = SqliteStore(str(tmp_path / "file" / "store.sqlite3"), max_count=1, max_bytes=1 << 20, max_age_s=1.0)

    for call, argument in ((store.create, stored("a")), (store.get, "a"), (store.cancel, "a"), (store.delete, "a")):
        with pytest.raises(Unavailable, match=r"store\.sqlite3 cannot be used: .*File exists"):
            await call(argument)
    await store.close()


async def test_a_file_that_is_no_database_is_left_alone(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("my notes " * 100)
    store = SqliteStore(str(path), max_count=1, max_bytes=1 << 20, max_age_s=1.0)

    with pytest.raises(Unavailable, match="not a database"):
        await store.get("a")
    await store.close()
    assert path.read_text() == "my notes " * 100


async def test_a_store_in_memory_keeps_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = open_store(MEMORY, max_count=2, max_bytes=1 << 20, max_age_s=10.0)
    await store.create(stored("a"))

    assert await store.get("a") == stored("a")
    await store.close()
    assert list(tmp_path.iterdir()) == []


async def test_without_a_store_nothing_is_found():
    store = open_store("none", max_count=2, max_bytes=1 << 20, max_age_s=10.0)
    await store.create(stored("a"))

    assert isinstance(store, NoStore)
    for call in (store.get, store.chain, store.cancel, store.delete):
        with pytest.raises(NotFound):
            await call("a")
    await store.close()


async def test_by_default_the_file_is_in_the_cache_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("TETRAD_CACHE_DIR", str(tmp_path))
    store = open_store("", max_count=2, max_bytes=1 << 20, max_age_s=10.0)

    await store.create(stored("a"))

    await store.close()
    assert (tmp_path / "responses.sqlite3").is_file()


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


async def test_the_oldest_go_when_all_together_are_too_large(open_file, tmp_path):
    store = open_file(max_bytes=1 << 20)
    names = [str(number) for number in range(40)]
    for name in names:
        await store.create(StoredResponse(stored(name).response, [item("x" * 100_000)]))

    left = await kept(store, *names)
    await store.close()
    size_bytes = sum(file.stat().st_size for file in (tmp_path / "deep").iterdir())

    assert len(left) == 5  # of 200 KB each
    assert left == names[-len(left) :]
    assert size_bytes < (1 << 20) + 200_000


async def test_a_response_that_is_larger_than_the_store_is_refused_and_pushes_nothing_out(open_file):
    store = open_file(max_bytes=1 << 20)
    await store.create(stored("small"))

    with pytest.raises(Unavailable, match="1048576 bytes"):
        await store.create(StoredResponse(stored("large").response, [item("x" * (2 << 20))]))

    assert await kept(store, "small", "large") == ["small"]


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


async def test_a_file_that_was_repaired_is_used_without_a_restart(tmp_path):
    path = tmp_path / "store.sqlite3"
    path.write_text("broken " * 100)
    store = SqliteStore(str(path), max_count=10, max_bytes=1 << 20, max_age_s=10.0)
    with pytest.raises(Unavailable, match="not a database"):
        await store.create(stored("a"))

    path.unlink()
    await store.create(stored("a"))

    assert await kept(store, "a") == ["a"]
    await store.close()


SMALL_DISK = """
import asyncio, resource, sys
from tetrad.frontend.api.http.responses.sqlite_store import SqliteStore
from tetrad.frontend.api.http.responses.store import StoredResponse
from tetrad.services.errors import Unavailable

def response(number):
    fields = {"id": str(number), "previous_response_id": None, "status": "completed", "output": ["x" * 10_000]}
    return StoredResponse(fields, [])

async def main(path):
    store = SqliteStore(path, max_count=10_000, max_bytes=1 << 30, max_age_s=1000.0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    number = 0
    try:
        while True:
            await store.create(response(number))
            number += 1
    except Unavailable as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await store.create(response(number))
    print(number > 0 and all([await store.get(str(each)) == response(each) for each in range(number + 1)]))
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_disk_without_room_is_an_error_that_loses_nothing_and_ends_with_it(tmp_path):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SMALL_DISK, str(tmp_path / "store.sqlite3"), stdout=subprocess.PIPE
    )

    async with asyncio.timeout(30):
        printed, _ = await process.communicate()

    error, is_complete = printed.decode().splitlines()
    assert "cannot be used" in error
    assert is_complete == "True"


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
