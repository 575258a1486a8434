"""Store: keeps responses with what they answered, so that they can be read and continued, also after a restart.

SQLite in one file, by one thread of its own: the event loop never waits for a disk. Bounded by count and by age. Frontends may
share a file, as one that retires does with its successor: each response is finished by the one that generates it, and has
failed when that is gone. Knows responses as JSON; knows no requests.
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from tetrad.frontend.http.responses import encode
from tetrad.frontend.http.responses_api.owners import Owners
from tetrad.services.errors import InvalidRequest, NotFound, Unavailable
from tetrad.services.log import get_logger
from tetrad.services.model_files import CacheSettings

log = get_logger()

Result = TypeVar("Result")
Json = dict[str, Any]

MEMORY = ":memory:"
_FILE = "responses.sqlite3"
_OWNERS_SUFFIX = "-owners"
# For another frontend's write, which takes milliseconds.
_BUSY_TIMEOUT_S = 5.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    previous_id TEXT,
    status TEXT NOT NULL,
    stored_at REAL NOT NULL,
    response BLOB NOT NULL,
    input BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS responses_stored_at ON responses (stored_at);
CREATE INDEX IF NOT EXISTS responses_status ON responses (status) WHERE status IN ('queued', 'in_progress');
CREATE TABLE IF NOT EXISTS owners (id TEXT PRIMARY KEY, owner INTEGER NOT NULL) WITHOUT ROWID;
"""
# What is final stays as it is: somebody else may have cancelled it.
_SAVE = """
INSERT INTO responses (id, previous_id, status, stored_at, response, input) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET status = excluded.status, response = excluded.response
WHERE status IN ('queued', 'in_progress')
"""
_OTHERS_UNFINISHED = """
SELECT responses.id, owner FROM responses LEFT JOIN owners USING (id)
WHERE status IN ('queued', 'in_progress') AND owner IS NOT ?
"""
_CHAIN = """
WITH RECURSIVE chain (depth, previous_id, response, input) AS (
    SELECT 0, previous_id, response, input FROM responses WHERE id = ?
    UNION ALL
    SELECT depth + 1, older.previous_id, older.response, older.input
    FROM chain JOIN responses AS older ON older.id = chain.previous_id
)
SELECT previous_id, response, input FROM chain ORDER BY depth DESC
"""
_UNFINISHED = ("queued", "in_progress")
_LOST = {"code": "server_error", "message": "The server was restarted before the response was complete."}


@dataclass(frozen=True)
class StoredResponse:
    """A response and the items it answers, without those of the responses before it."""

    response: Json
    input_items: list[Json]


class ResponseStore(Protocol):
    """Where responses are kept."""

    async def save(self, stored: StoredResponse) -> None:
        """Keep a response, or its newer state. A failure is logged: the response is of use without being kept."""

    async def get(self, response_id: str) -> StoredResponse:
        """Return a response; NotFound if it is not kept."""

    async def chain(self, response_id: str) -> list[StoredResponse]:
        """Return a response and all that it continues, oldest first.

        Raises:
            NotFound: it, or one that it continues, is not kept.
        """

    async def delete(self, response_id: str) -> None:
        """Forget a response; NotFound if it is not kept."""

    async def close(self) -> None:
        """Give back what the store holds."""


class NoStore:
    """Keeps nothing: this server was told so."""

    async def save(self, stored: StoredResponse) -> None:
        """Do nothing."""

    async def get(self, response_id: str) -> StoredResponse:
        """Raise NotFound."""
        raise _not_found(response_id)

    async def chain(self, response_id: str) -> list[StoredResponse]:
        """Raise NotFound."""
        raise _not_found(response_id)

    async def delete(self, response_id: str) -> None:
        """Raise NotFound."""
        raise _not_found(response_id)

    async def close(self) -> None:
        """Do nothing."""


class SqliteStore:
    """Keeps responses in a file. The file is opened at first use.

    Args:
        path: the file, which need not exist; MEMORY: none, and all is lost with the process.
        max_count: most responses kept; the oldest go first.
        max_age_s: longest a response is kept.
        now: the clock, in seconds since 1970.
    """

    def __init__(self, path: str, *, max_count: int, max_age_s: float, now: Callable[[], float] = time.time) -> None:
        self._path = path
        self._max_count = max_count
        self._max_age_s = max_age_s
        self._now = now
        # The one thread that touches the database.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="response-store")
        self._database: sqlite3.Connection | None = None
        self._owners: Owners | None = None  # of a file
        self._unfinished: set[str] = set()  # what this store was given and has not seen the end of
        self._closed = False

    async def save(self, stored: StoredResponse) -> None:
        """Keep a response, or its newer state."""
        try:
            await self._run(lambda database: self._save(database, stored))
        except Unavailable as error:
            log.error("responses.not_stored", response_id=stored.response["id"], reason=error.message)

    async def get(self, response_id: str) -> StoredResponse:
        """Return a response; NotFound if it is not kept."""
        query = "SELECT response, input FROM responses WHERE id = ?"
        row = await self._run(lambda database: self._current(database).execute(query, (response_id,)).fetchone())
        if row is None:
            raise _not_found(response_id)
        return _stored(*row)

    async def chain(self, response_id: str) -> list[StoredResponse]:
        """Return a response and all that it continues, oldest first; NotFound if one of them is not kept."""
        rows = await self._run(lambda database: self._current(database).execute(_CHAIN, (response_id,)).fetchall())
        if not rows or rows[0][0] is not None:
            raise _not_found(rows[0][0] if rows else response_id)
        return [_stored(response, items) for _, response, items in rows]

    async def delete(self, response_id: str) -> None:
        """Forget a response; NotFound if it is not kept."""
        if not await self._run(lambda database: self._delete(database, response_id)):
            raise _not_found(response_id)

    async def close(self) -> None:
        """Close the file; what is asked of the store later fails."""
        if self._closed:
            return
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    async def _run(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Return what `work` returns, in the store's thread; Unavailable if the database cannot be used."""
        if self._closed:
            raise Unavailable("The store of responses is closed: this server is shutting down.")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._call, work)

    # Everything below runs in the store's thread.

    def _call(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        try:
            if self._database is None:
                self._database = self._open()
            with self._database:
                return work(self._database)
        except (sqlite3.Error, OSError) as error:
            raise Unavailable(f"The store of responses at {self._path} cannot be used: {error}.") from error

    def _open(self) -> sqlite3.Connection:
        if self._path == MEMORY:
            return self._connect()
        Path(self._path).parent.mkdir(parents=True, exist_ok=True)
        # Conversations are nobody else's business on this machine. SQLite gives its other files the same permissions.
        os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
        self._owners = self._owners or Owners(self._path + _OWNERS_SUFFIX)
        # Of two that turn the write-ahead log on at the same time one would fail, however long it may wait.
        with self._owners.alone():
            return self._connect()

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, timeout=_BUSY_TIMEOUT_S, check_same_thread=False)
        try:
            # Readers and the writer of other processes do not block each other; a crash loses no more than the last write.
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.executescript(_SCHEMA)
        except sqlite3.Error:
            database.close()
            raise
        return database

    def _current(self, database: sqlite3.Connection) -> sqlite3.Connection:
        """Return the database when every response in it that nobody generates any more has failed."""
        if self._owners is not None:
            others = database.execute(_OTHERS_UNFINISHED, (self._owners.own,)).fetchall()
            dead = {owner for _, owner in others if owner is None or not self._owners.lives(owner)}
            if dead:
                self._fail(database, [response_id for response_id, owner in others if owner in dead])
        return database

    def _fail(self, database: sqlite3.Connection, lost: list[str]) -> None:
        # Nobody may write between reading and writing.
        database.execute("BEGIN IMMEDIATE")
        for response_id in lost:
            query = f"SELECT response FROM responses WHERE id = ? AND status IN {_UNFINISHED}"
            # It may have been finished just before its owner ended.
            for (data,) in database.execute(query, (response_id,)).fetchall():
                response = msgspec.json.decode(data) | {"status": "failed", "error": _LOST}
                query = "UPDATE responses SET status = 'failed', response = ? WHERE id = ?"
                database.execute(query, (encode(response), response_id))
            database.execute("DELETE FROM owners WHERE id = ?", (response_id,))

    def _save(self, database: sqlite3.Connection, stored: StoredResponse) -> None:
        response, now = stored.response, self._now()
        response_id, status = response["id"], response["status"]
        row = (response_id, response["previous_response_id"], status, now, encode(response), encode(stored.input_items))
        database.execute("BEGIN IMMEDIATE")
        query = "SELECT 1 FROM owners WHERE id = ?"
        if response_id in self._unfinished and not database.execute(query, (response_id,)).fetchone():
            return  # another frontend was told to forget it
        database.execute(_SAVE, row)
        self._note_owner(database, response_id, is_unfinished=status in _UNFINISHED)
        database.execute("DELETE FROM responses WHERE stored_at < ?", (now - self._max_age_s,))
        # Deleted rows leave gaps in seq: there may be fewer than the limit, never more.
        newest = "SELECT max(seq) FROM responses"
        database.execute(f"DELETE FROM responses WHERE seq <= ({newest}) - ?", (self._max_count,))

    def _delete(self, database: sqlite3.Connection, response_id: str) -> bool:
        database.execute("DELETE FROM owners WHERE id = ?", (response_id,))
        return bool(database.execute("DELETE FROM responses WHERE id = ?", (response_id,)).rowcount)

    def _note_owner(self, database: sqlite3.Connection, response_id: str, *, is_unfinished: bool) -> None:
        if is_unfinished:
            self._unfinished.add(response_id)
            own = 0 if self._owners is None else self._owners.own
            database.execute("INSERT OR REPLACE INTO owners (id, owner) VALUES (?, ?)", (response_id, own))
        else:
            self._unfinished.discard(response_id)
            database.execute("DELETE FROM owners WHERE id = ?", (response_id,))

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._owners is not None:
            self._owners.close()
            self._owners = None


def open_store(place: str, *, max_count: int, max_age_s: float) -> ResponseStore:
    """Return the store at a file or MEMORY; in Tetrad's cache directory if `place` is empty, nowhere if it is "none"."""
    if place == "none":
        return NoStore()
    return SqliteStore(place or str(CacheSettings().directory() / _FILE), max_count=max_count, max_age_s=max_age_s)


def history_of(chain: list[StoredResponse]) -> list[Json]:
    """Return the items of a chain in the order of the conversation; InvalidRequest if its last response is not final."""
    last = chain[-1].response
    if last["status"] in _UNFINISHED:
        text = f"Response {last['id']!r} is {last['status']}: it can be continued when it is complete."
        raise InvalidRequest(text, field="previous_response_id")
    return [item for stored in chain for item in (*stored.input_items, *stored.response["output"])]


def _stored(response: bytes, items: bytes) -> StoredResponse:
    return StoredResponse(msgspec.json.decode(response), msgspec.json.decode(items))


def _not_found(response_id: str) -> NotFound:
    return NotFound(f"Response with id {response_id!r} not found.", field="response_id", reason="RESPONSE_NOT_FOUND")
