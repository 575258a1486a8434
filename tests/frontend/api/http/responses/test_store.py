"""The store of responses: survives a restart, is bounded, follows chains; its own failure fails no response."""

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
import threading

import msgspec
import pytest

from tests.frontend.api.http.responses.stored_responses import item, kept, stored
from tetrad.frontend.api.http.responses.database import MEMORY, check_store
from tetrad.frontend.api.http.responses.sqlite_store import SqliteStore, open_store
from tetrad.frontend.api.http.responses.store import NoStore, StoredResponse, history_of
from tetrad.services.errors import InvalidRequest, NotFound, Unavailable


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


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


async def test_a_long_chain_does_not_hold_up_the_event_loop(open_file, monkeypatch):
    """Its responses may have many megabytes: they are decoded in the store's thread."""
    store, threads, decode = open_file(), set(), msgspec.json.decode
    for each in (stored("a"), stored("b", "a")):
        await store.create(each)
    monkeypatch.setattr(msgspec.json, "decode", lambda data: threads.add(threading.current_thread().name) or decode(data))

    await store.chain("b")

    assert threads == {"response-store_0"}


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


async def test_the_old_are_not_found_before_another_response_is_stored(open_file):
    clock = Clock()
    store = open_file(max_age_s=10.0, now=clock)
    await store.create(stored("a"))
    await store.create(stored("running", status="in_progress"))
    clock.now += 6
    await store.create(stored("b", "a"))
    assert len(await store.chain("b")) == 2
    clock.now += 5

    assert await kept(store, "a", "running", "b") == ["running", "b"]
    with pytest.raises(NotFound, match="'a'"):
        await store.chain("b")
    with pytest.raises(NotFound, match="'a'"):
        await store.cancel("a")


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


@pytest.mark.parametrize("place", ["/proc/x/store.sqlite3", "/", "/dev/null/store.sqlite3", "notes.txt"])
def test_a_file_that_cannot_be_the_store_is_refused_at_the_start(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("my notes " * 100)

    with pytest.raises(InvalidRequest, match=f"The store of responses at {place} cannot be used: .*, or none."):
        check_store(place)


async def test_a_store_that_another_process_locks_is_not_refused_at_the_start(tmp_path):
    path = tmp_path / "directory" / "store.sqlite3"
    check_store(str(path))
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")

        check_store(str(path))


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


async def test_a_response_that_grows_larger_than_the_store_fails_and_pushes_nothing_out(open_file):
    store = open_file(max_bytes=1 << 20)
    await store.create(stored("small"))
    await store.create(stored("large", status="in_progress"))

    await store.finish(StoredResponse(stored("large").response | {"output": [item("x" * (2 << 20))]}, []))

    assert await kept(store, "small", "large") == ["small", "large"]
    large = (await store.get("large")).response
    assert (large["status"], large["output"]) == ("failed", [])
    assert "more than 1048576 bytes (responses_store_max_bytes)" in large["error"]["message"]
    await store.create(stored("next"))
    assert await kept(store, "small", "large", "next") == ["small", "large", "next"]


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
