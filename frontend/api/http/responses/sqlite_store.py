"""SqliteStore: stores responses in one SQLite file, limited by count, bytes and age.

Frontends may share a file, for example a retiring one and its successor: only the frontend that generates a response finishes
it, and the response counts as failed if that process has ended. A response changes from unfinished to one final state, and can
be deleted permanently. Unfinished responses are never evicted.
"""

import sqlite3
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

import msgspec

from tetrad.frontend.api.http.responses.database import ResponseDatabase
from tetrad.frontend.api.http.responses.encoding import pieces_of
from tetrad.frontend.api.http.responses.store import (
    UNFINISHED,
    Json,
    NoStore,
    ResponseStore,
    StoredResponse,
    not_found,
)
from tetrad.frontend.api.http.schemas.objects import encode
from tetrad.services.errors import Unavailable
from tetrad.services.hub.model_files import CacheSettings
from tetrad.services.log import get_logger

log = get_logger()

_FILE = "responses.sqlite3"
_IS_UNFINISHED = "status IN ('queued', 'in_progress')"
_INSERT = "INSERT INTO responses (id, previous_id, status, stored_at, response, input) VALUES (?, ?, ?, ?, ?, ?)"
# A completed response becomes the newest: by the time of its creation it could be evicted next.
_FINISH = f"""
UPDATE responses SET status = ?, response = ?, seq = (SELECT max(seq) + 1 FROM responses) WHERE id = ? AND {_IS_UNFINISHED}
"""
_COLUMNS = "response, input, status, previous_id, owner, stored_at"
_GET = f"SELECT {_COLUMNS} FROM responses LEFT JOIN owners USING (id) WHERE id = ?"
_STOPPED = """
SELECT value FROM json_each(?)
WHERE NOT EXISTS (SELECT 1 FROM responses WHERE responses.id = value AND status != 'cancelled')
"""
_CHAIN = f"""
WITH RECURSIVE chain (depth, id, previous_id, status, response, input, stored_at) AS (
    SELECT 0, id, previous_id, status, response, input, stored_at FROM responses WHERE id = ?
    UNION ALL
    SELECT depth + 1, older.id, older.previous_id, older.status, older.response, older.input, older.stored_at
    FROM chain JOIN responses AS older ON older.id = chain.previous_id
)
SELECT {_COLUMNS} FROM chain LEFT JOIN owners USING (id) ORDER BY depth DESC
"""
_UNFINISHED_OF_OTHERS = f"SELECT id, owner FROM responses LEFT JOIN owners USING (id) WHERE {_IS_UNFINISHED} AND owner IS NOT ?"
_PUSH_OUT = f"""
DELETE FROM responses
WHERE seq IN (SELECT seq FROM responses WHERE NOT {_IS_UNFINISHED} AND id != ? ORDER BY seq LIMIT ?)
"""
_LOST = {"code": "server_error", "message": "The server was restarted before the response was complete."}


class _Row(NamedTuple):
    """A stored response, and its owner if it is unfinished."""

    response: bytes
    input_items: bytes
    status: str
    previous_id: str | None
    owner: int | None
    stored_at: float


class SqliteStore:
    """Stores responses in a file, which is opened at first use.

    Args:
        path: path of the file, which need not exist; MEMORY: no file, the responses are lost at the end of the process.
        max_count: maximum number of responses; the oldest are evicted first.
        max_bytes: maximum number of used bytes of the database; the oldest responses are evicted first.
        max_age_s: maximum age of a response in seconds.
        now: returns the time in seconds since 1970.
    """

    def __init__(
        self, path: str, *, max_count: int, max_bytes: int, max_age_s: float, now: Callable[[], float] = time.time
    ) -> None:
        self._database = ResponseDatabase(path, self._fail_lost)
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._now = now

    async def create(self, stored: StoredResponse) -> None:
        """Store a new response."""
        await self._database.write(lambda database: self._create(database, stored))

    async def finish(self, stored: StoredResponse) -> StoredResponse | None:
        """See ResponseStore."""
        return await self._database.write(lambda database: self._finish(database, stored))

    async def cancel(self, response_id: str) -> StoredResponse:
        """Mark an unfinished response as cancelled; return its present state. NotFound if it is not stored."""
        return _found(await self._database.write(lambda database: self._cancel(database, response_id)), response_id)

    async def stopped_of(self, response_ids: Collection[str]) -> list[str]:
        """Return those of these responses that were cancelled or deleted."""
        ids = msgspec.json.encode(list(response_ids)).decode()
        return await self._database.read(lambda database: [row[0] for row in database.execute(_STOPPED, (ids,))])

    async def get(self, response_id: str) -> StoredResponse:
        """Return a response; NotFound if it is not stored."""
        return _found(await self._database.read(lambda database: self._get(database, response_id)), response_id)

    async def chain(self, response_id: str) -> list[StoredResponse]:
        """Return a response and all that it continues, oldest first; NotFound if one of them is not stored."""
        return await self._database.read(lambda database: self._chain(database, response_id))

    async def delete(self, response_id: str) -> None:
        """Delete a response; NotFound if it is not stored."""
        if not await self._database.write(lambda database: self._delete(database, response_id)):
            raise not_found(response_id)

    async def close(self) -> None:
        """Close the file; later calls fail."""
        await self._database.close()

    # Everything below runs in the database's thread.

    @property
    def _own(self) -> int:
        owners = self._database.owners
        return 0 if owners is None else owners.own

    def _is_lost(self, row: _Row) -> bool:
        """Return whether a response is unfinished and its owner has ended."""
        owners = self._database.owners
        if row.status not in UNFINISHED or owners is None or row.owner == owners.own:
            return False
        return row.owner is None or not owners.lives(row.owner)

    def _current(self, database: sqlite3.Connection, query: str, response_id: str) -> list[_Row]:
        """Return the rows of a query as they will be written: lost responses have failed, and old ones do not exist."""
        rows = [_Row(*row) for row in database.execute(query, (response_id,))]
        if any(self._is_lost(row) for row in rows):
            # A response may have been finished just before its owner ended: read again.
            rows = [_Row(*row) for row in database.execute(query, (response_id,))]
        oldest_s = self._now() - self._max_age_s
        kept = [row for row in rows if row.stored_at >= oldest_s or row.status in UNFINISHED]
        return [_failed(row) if self._is_lost(row) else row for row in kept]

    def _get(self, database: sqlite3.Connection, response_id: str) -> StoredResponse | None:
        rows = self._current(database, _GET, response_id)
        return _stored(rows[0]) if rows else None

    def _chain(self, database: sqlite3.Connection, response_id: str) -> list[StoredResponse]:
        rows = self._current(database, _CHAIN, response_id)
        missing = rows[0].previous_id if rows else response_id
        if missing is not None:
            raise not_found(missing)
        return [_stored(row) for row in rows]

    def _create(self, database: sqlite3.Connection, stored: StoredResponse) -> None:
        response, now = stored.response, self._now()
        response_id, status = response["id"], response["status"]
        items = encode(stored.input_items)
        database.execute(
            _INSERT, (response_id, response["previous_response_id"], status, now, b"".join(pieces_of(response)), items)
        )
        if status in UNFINISHED:
            database.execute("INSERT INTO owners (id, owner) VALUES (?, ?)", (response_id, self._own))
        if not self._make_room(database, response_id):
            text = "The store of responses is full: this response and those that are being generated have more than the"
            raise Unavailable(f"{text} {self._max_bytes} bytes that it may have (responses_store_max_bytes).")

    def _finish(self, database: sqlite3.Connection, stored: StoredResponse) -> StoredResponse | None:
        response_id = stored.response["id"]
        database.execute("SAVEPOINT finish")
        is_written = _write_final(database, stored.response)
        if not self._make_room(database, response_id):
            # All others would be gone, and it would still not fit: it fails alone.
            database.execute("ROLLBACK TO finish")
            log.warning("responses.too_large_to_store", response_id=response_id, max_bytes=self._max_bytes)
            stored = StoredResponse(_too_large(stored.response, self._max_bytes), stored.input_items)
            is_written = _write_final(database, stored.response)
            self._make_room(database, response_id)
        database.execute("RELEASE finish")
        return stored if is_written else self._get(database, response_id)

    def _cancel(self, database: sqlite3.Connection, response_id: str) -> StoredResponse | None:
        rows = self._current(database, _GET, response_id)
        if not rows:
            return None
        stored = _stored(rows[0])
        if stored.response["status"] in UNFINISHED:
            stored = StoredResponse(stored.response | {"status": "cancelled"}, stored.input_items)
        _write_final(database, stored.response)
        return stored

    def _delete(self, database: sqlite3.Connection, response_id: str) -> bool:
        database.execute("DELETE FROM owners WHERE id = ?", (response_id,))
        return bool(database.execute("DELETE FROM responses WHERE id = ?", (response_id,)).rowcount)

    def _make_room(self, database: sqlite3.Connection, newest_id: str) -> bool:
        """Evict responses beyond the limits; return whether the newest response now fits."""
        self._fail_lost(database)
        oldest_s = self._now() - self._max_age_s
        database.execute(f"DELETE FROM responses WHERE stored_at < ? AND NOT {_IS_UNFINISHED}", (oldest_s,))
        num_too_many = database.execute("SELECT count(*) FROM responses").fetchone()[0] - self._max_count
        if num_too_many > 0:
            database.execute(_PUSH_OUT, (newest_id, num_too_many))
        while _used_bytes(database) > self._max_bytes:
            if not database.execute(_PUSH_OUT, (newest_id, 1)).rowcount:
                return False
        return True

    def _fail_lost(self, database: sqlite3.Connection) -> None:
        """Mark lost responses as failed, because unfinished responses cannot be evicted."""
        owners = self._database.owners
        for response_id, owner in database.execute(_UNFINISHED_OF_OTHERS, (self._own,)).fetchall():
            if owner is not None and owners is not None and owners.lives(owner):
                continue
            for row in self._current(database, _GET, response_id):
                if row.status == "failed":
                    _write_final(database, msgspec.json.decode(row.response))


def open_store(place: str, *, max_count: int, max_bytes: int, max_age_s: float) -> ResponseStore:
    """Return the store of a file or MEMORY; empty `place`: a file in Tetrad's cache directory; "none": a NoStore."""
    if place == "none":
        return NoStore()
    path = place or str(CacheSettings().directory() / _FILE)
    return SqliteStore(path, max_count=max_count, max_bytes=max_bytes, max_age_s=max_age_s)


def _found(stored: StoredResponse | None, response_id: str) -> StoredResponse:
    if stored is None:
        raise not_found(response_id)
    return stored


def _stored(row: _Row) -> StoredResponse:
    return StoredResponse(msgspec.json.decode(row.response), msgspec.json.decode(row.input_items))


def _too_large(response: Json, max_bytes: int) -> Json:
    """Return the final state of a response that the store cannot hold."""
    text = "The response was complete, but could not be stored: with those that are being generated, the store of responses"
    error = {"code": "server_error", "message": f"{text} would have more than {max_bytes} bytes (responses_store_max_bytes)."}
    return response | {"status": "failed", "error": error, "output": []}


def _failed(row: _Row) -> _Row:
    response = msgspec.json.decode(row.response) | {"status": "failed", "error": _LOST}
    return row._replace(response=encode(response), status="failed")


def _write_final(database: sqlite3.Connection, response: Json) -> bool:
    """Write the state of a response that has no final one; return whether there is such a response."""
    found = database.execute(_FINISH, (response["status"], b"".join(pieces_of(response)), response["id"]))
    database.execute("DELETE FROM owners WHERE id = ?", (response["id"],))
    return bool(found.rowcount)


def _used_bytes(database: sqlite3.Connection) -> int:
    counts = [database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")]
    return int((counts[0] - counts[1]) * counts[2])
