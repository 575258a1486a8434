"""Fixtures: a store of responses on a file."""

import pytest

from tetrad.frontend.api.http.responses.sqlite_store import SqliteStore


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
