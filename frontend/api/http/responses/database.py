"""ResponseDatabase: manages the SQLite database of the responses store: its file, tables, errors and locks of other processes.

One thread uses the database, and SQLite never waits in it: while another process holds a lock, the event loop retries the
calls that need the lock, and all other calls proceed. After an error the file is opened again, in case it was repaired or
replaced. Knows no responses.
"""

import asyncio
import contextlib
import errno
import os
import random
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from tetrad.frontend.api.http.responses.owners import Owners
from tetrad.services.errors import InvalidRequest, Unavailable

Result = TypeVar("Result")
Work = Callable[[sqlite3.Connection], Result]

MEMORY = ":memory:"
_OWNERS_SUFFIX = "-owners"
# Maximum seconds that a call waits for a lock; another frontend's write takes milliseconds.
_PATIENCE_S = 1.0
_NEXT_TRY_S = (0.002, 0.02)
_PASSING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM)
"""SQLite's errors that may pass while the same file is used."""

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


class _Locked(Exception):
    """Another process holds a lock."""


class ResponseDatabase:
    """One database, which is opened at first use.

    Args:
        path: path of the file, which need not exist; MEMORY: no file, the content is lost at the end of the process.
        on_open: called in the database's thread after each opening.

    Attributes:
        owners: the owners of responses, while a file is open; only for the database's thread.
    """

    def __init__(self, path: str, on_open: Callable[[sqlite3.Connection], None]) -> None:
        self._path = path
        self._on_open = on_open
        self.owners: Owners | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="response-store")
        self._connection: sqlite3.Connection | None = None
        self._write_lock = _Wait()
        self._closed = False

    async def read(self, work: Work[Result]) -> Result:
        """Run `work` in the database's thread and return its result; Unavailable if the database cannot be used."""
        return await self._run(work, _Wait())

    async def write(self, work: Work[Result]) -> Result:
        """Run `work` in the database's thread in one exclusive transaction, and return its result; errors as in `read`."""

        def in_transaction(connection: sqlite3.Connection) -> Result:
            connection.execute("BEGIN IMMEDIATE")
            return work(connection)

        return await self._run(in_transaction, self._write_lock)

    def check(self) -> None:
        """Open and close the file, in the calling thread: for a database that is used for nothing else. Blocks (disk).

        A lock of another process and a full disk are no errors: both may pass.

        Raises:
            InvalidRequest: the file cannot be used.
        """
        try:
            self._open().close()
        except (sqlite3.Error, OSError) as error:
            if not _may_pass(error):
                reason = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) and error.filename else str(error)
                text = f"The store of responses at {self._path} cannot be used: {reason}. Give responses_store another file"
                raise InvalidRequest(f"{text}, or none.", field="responses_store") from error
        finally:
            self._close()

    async def close(self) -> None:
        """Close the file; later calls fail."""
        if self._closed:
            return
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    async def _run(self, work: Work[Result], wait: "_Wait") -> Result:
        while not self._closed:
            try:
                result = await asyncio.get_running_loop().run_in_executor(self._thread, self._call, work)
            except _Locked:
                if wait.is_over():
                    text = f"another process has held its lock for more than {_PATIENCE_S:g} s"
                    raise Unavailable(self._useless(text)) from None
                await asyncio.sleep(random.uniform(*_NEXT_TRY_S))
            else:
                wait.end()
                return result
        raise Unavailable("The store of responses is closed: this server is shutting down.")

    # Everything below runs in the database's thread.

    def _call(self, work: Work[Result]) -> Result:
        try:
            if self._connection is None:
                self._connection = self._open()
            with self._connection:
                return work(self._connection)
        except (sqlite3.Error, OSError) as error:
            if _is_lock(error):
                raise _Locked from error
            if self._path != MEMORY:
                self._disconnect()
            raise Unavailable(self._useless(str(error))) from error

    def _open(self) -> sqlite3.Connection:
        if self._path == MEMORY:
            return self._connect()
        Path(self._path).parent.mkdir(parents=True, exist_ok=True)
        # Other users of this machine must not read conversations. SQLite gives its other files the same permissions.
        os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
        self.owners = self.owners or Owners(self._path + _OWNERS_SUFFIX)
        # If two processes enabled the write-ahead log at the same time, one would fail, even after a wait.
        with self.owners.alone():
            return self._connect()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=0, check_same_thread=False)
        try:
            # Readers and the writer of other processes do not block each other; a crash loses no more than the last write.
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.executescript(_SCHEMA)
            with connection:
                self._on_open(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _close(self) -> None:
        self._disconnect()
        if self.owners is not None:
            self.owners.close()
            self.owners = None

    def _useless(self, reason: str) -> str:
        return f"The store of responses at {self._path} cannot be used: {reason}. Its operator has to make it writable."


class _Wait:
    """Measures the wait for a lock."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._last_s = 0.0

    def is_over(self) -> bool:
        """Record that another process holds the lock; return whether it does so for too long."""
        now_s = time.monotonic()
        # After a pause without any call, it is not known whether this is still the same lock.
        if self._since_s is None or now_s - self._last_s > _PATIENCE_S:
            self._since_s = now_s
        self._last_s = now_s
        return now_s - self._since_s > _PATIENCE_S

    def end(self) -> None:
        """Record that the lock was available."""
        self._since_s = None


def _is_lock(error: Exception) -> bool:
    if isinstance(error, sqlite3.Error):
        return _kind(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return isinstance(error, BlockingIOError)


def check_store(place: str) -> None:
    """Raise InvalidRequest if `responses_store` names a file that cannot be used. Blocks (disk).

    The default file is not checked: a server whose home directory is read-only may serve everything else.
    """
    if place not in ("", "none", MEMORY):
        ResponseDatabase(place, lambda _: None).check()


def _may_pass(error: sqlite3.Error | OSError) -> bool:
    if isinstance(error, sqlite3.Error):
        return _kind(error) in _PASSING
    return error.errno in (errno.EAGAIN, errno.ENOSPC, errno.EDQUOT, errno.EIO)


def _kind(error: sqlite3.Error) -> int:
    # The last byte is the kind of error; the others have details.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
