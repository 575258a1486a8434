"""Results: the output of a batch, one line per finished request, in the order in which they finish.

Only ever appended to, a whole line at a time; so whatever kills a run, the file holds complete results and at most one torn
line at its end, which the next run cuts off. Held by one run at a time (an advisory lock, gone with the process).
"""

import contextlib
import fcntl
import json
import os
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from tetrad.cli.batch_file.lines import BadLine, BatchRequest, Key, Line
from tetrad.services.errors import FailedPrecondition, InvalidRequest, Unavailable

_ID_PREFIX = "batch_req_"
# How every line begins: what a torn one is known by.
_BEGIN = f'{{"id": "{_ID_PREFIX}'.encode()


def response_record(request: BatchRequest, *, status_code: int, request_id: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a request that was answered, well or not."""
    response = {"status_code": status_code, "request_id": request_id, "body": body}
    return {"id": _new_id(), "custom_id": request.custom_id, "response": response, "error": None}


def error_record(line: Line, code: str, message: str) -> dict[str, Any]:
    """Return the result of a line that has no answer. `custom_id` is None if the line has none; `error.line` names it then."""
    custom_id = None if isinstance(line, BadLine) and line.custom_id is None else line.key
    error = {"code": code, "message": message, "param": None, "line": line.number}
    return {"id": _new_id(), "custom_id": custom_id, "response": None, "error": error}


class ResultFile:
    """The output file of one run. A context manager; opening it repairs it.

    Args:
        path: created if it does not exist; its directory must.

    Raises:
        InvalidRequest: the file holds something else than results, so it is left as it is.
        FailedPrecondition: another run writes it.
        Unavailable: it cannot be opened or written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = self._open()
        try:
            self.done = self._repair()
        except BaseException:
            self._file.close()
            raise

    def append(self, record: dict[str, Any]) -> None:
        """Add a result; it is in the file when this returns."""
        try:
            self._file.write(json.dumps(record).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise self._unwritable(error, then=" Run the same command again to go on.") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # Where the disk is full the last line stays torn, and `append` has said why.
        with contextlib.suppress(OSError):
            self._file.close()

    def _open(self) -> BinaryIO:
        try:
            file = self._path.open("a+b")
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise FailedPrecondition(f"Another run writes {self._path}; wait for it, or give another -o.") from error
        return file

    def _repair(self) -> set[Key]:
        """Return the keys of the results that are there, and cut off a torn one behind them."""
        done: set[Key] = set()
        end = 0
        self._file.seek(0)
        for number, raw in enumerate(self._file, start=1):
            if not raw.endswith(b"\n"):
                if not _BEGIN.startswith(raw) and not raw.startswith(_BEGIN):
                    raise self._foreign(number)
                os.truncate(self._file.fileno(), end)
                break
            done.add(self._key_of(number, raw))
            end += len(raw)
        self._file.seek(0, os.SEEK_END)
        return done

    def _key_of(self, number: int, raw: bytes) -> Key:
        try:
            record = json.loads(raw)
            if not record["id"].startswith(_ID_PREFIX):
                raise self._foreign(number)
            key = record["error"]["line"] if record["custom_id"] is None else record["custom_id"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._foreign(number) from error
        if not isinstance(key, str | int):
            raise self._foreign(number)
        return key

    def _foreign(self, number: int) -> InvalidRequest:
        text = f"{self._path} is not the output of a batch: line {number} is no result. It is left as it is; give another -o."
        return InvalidRequest(text, field="output_file")

    def _unwritable(self, error: OSError, *, then: str = "") -> Unavailable:
        return Unavailable(f"Cannot write {self._path}: {error.strerror or error}.{then}")


def _new_id() -> str:
    return f"{_ID_PREFIX}{uuid.uuid4().hex}"
