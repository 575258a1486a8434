"""Results: writes the output of a batch, one line per finished request, in the order of completion.

Whole lines are appended; so after a killed run the file has complete results and at most one incomplete line at its end, which
the next run removes. That run also drops the results of temporary failures and sends these requests again: it replaces the
file atomically by one without them. One run at a time holds the file (an advisory lock, which ends with the process).
"""

import contextlib
import fcntl
import json
import os
import stat
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from tetrad.cli.batch_file.lines import BadLine, BatchRequest, Key, Line
from tetrad.services.errors import FailedPrecondition, InvalidRequest, Unavailable

_ID_PREFIX = "batch_req_"
PASSING_STATUS = (408, 429, 502, 503, 504)
"""Statuses of temporary failures."""
_PASSING_CODES = ("connection_lost", "request_timeout", "unavailable")
# The start of every line, which identifies an incomplete line.
_BEGIN = f'{{"id": "{_ID_PREFIX}'.encode()


def response_record(request: BatchRequest, *, status_code: int, request_id: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the result of an answered request; the answer may be an error."""
    response = {"status_code": status_code, "request_id": request_id, "body": body}
    return {"id": _new_id(), "custom_id": request.custom_id, "response": response, "error": None}


def error_record(line: Line, code: str, message: str) -> dict[str, Any]:
    """Return the result of a line without an answer. If the line has no custom_id, `error.line` identifies it."""
    custom_id = None if isinstance(line, BadLine) and line.custom_id is None else line.key
    error = {"code": code, "message": message, "param": None, "line": line.number}
    return {"id": _new_id(), "custom_id": custom_id, "response": None, "error": error}


def has_failed(record: dict[str, Any]) -> bool:
    """Return whether a result is a failure."""
    response = record["response"]
    return response is None or response["status_code"] >= 400


def may_pass(record: dict[str, Any]) -> bool:
    """Return whether a result is a temporary failure: of the connection, or of a busy server."""
    response = record["response"]
    if response is None:
        return record["error"]["code"] in _PASSING_CODES
    return response["status_code"] in PASSING_STATUS


class ResultFile:
    """The output file of one run. A context manager; the constructor repairs the file.

    Args:
        path: path of the file, which is created if it does not exist; its directory must exist.

    Attributes:
        done: keys of the results that stay in the file.
        failed: keys of the failures among them.

    Raises:
        InvalidRequest: the file has other content than results, or is no file; it is not changed.
        FailedPrecondition: another run writes the file.
        Unavailable: the file cannot be opened or written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.done: set[Key] = set()
        self.failed: set[Key] = set()
        # Locked files: the output, and the file that it replaced, which another run may have opened before.
        self._files = contextlib.ExitStack()
        self._file = self._open(path)
        try:
            if self._repair():
                self._drop_passing_failures()
        except BaseException:
            self._files.close()
            raise

    def append(self, record: dict[str, Any]) -> None:
        """Write a result to the file."""
        try:
            self._file.write(json.dumps(record).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise self._unwritable(error, then=" Run the same command again to go on.") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # On a full disk the last line stays incomplete, and `append` has raised the reason.
        with contextlib.suppress(OSError):
            self._files.close()

    def _open(self, path: Path) -> BinaryIO:
        try:
            if path.exists() and not path.is_file() and not path.is_dir() and not path.samefile(os.devnull):
                text = f"{path} is a device, a pipe or a socket: a run reads the results before it. Give a file as -o."
                raise InvalidRequest(text, field="output_file")
            file = self._files.enter_context(path.open("a+b"))
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._files.close()
            raise FailedPrecondition(f"Another run writes {self._path}; wait for it, or give another -o.") from error
        return file

    def _repair(self) -> bool:
        """Record the results that stay, and remove an incomplete last line; return whether there are temporary failures."""
        has_others = False
        end = 0
        self._file.seek(0)
        for number, raw in enumerate(self._file, start=1):
            if not raw.endswith(b"\n"):
                if not _BEGIN.startswith(raw) and not raw.startswith(_BEGIN):
                    raise self._foreign(number)
                os.truncate(self._file.fileno(), end)
                break
            end += len(raw)
            key, record = self._read(number, raw)
            if may_pass(record):
                has_others = True
            else:
                self.done.add(key)
                if has_failed(record):
                    self.failed.add(key)
        self._file.seek(0, os.SEEK_END)
        return has_others

    def _drop_passing_failures(self) -> None:
        """Replace the file by one that has only the results that stay."""
        path = self._path.resolve()  # a symbolic link is kept
        successor = path.with_name(f".{path.name}.new")
        old, self._file = self._file, self._open(successor)
        try:
            os.fchmod(self._file.fileno(), stat.S_IMODE(os.fstat(old.fileno()).st_mode))
            self._file.truncate(0)
            old.seek(0)
            self._file.writelines(raw for raw in old if not may_pass(json.loads(raw)))
            self._file.flush()
            os.fsync(self._file.fileno())
            successor.replace(path)
        except OSError as error:
            successor.unlink(missing_ok=True)
            raise self._unwritable(error) from error

    def _read(self, number: int, raw: bytes) -> tuple[Key, dict[str, Any]]:
        try:
            record = json.loads(raw)
            if not record["id"].startswith(_ID_PREFIX):
                raise self._foreign(number)
            key = record["error"]["line"] if record["custom_id"] is None else record["custom_id"]
            may_pass(record)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._foreign(number) from error
        if not isinstance(key, str | int):
            raise self._foreign(number)
        return key, record

    def _foreign(self, number: int) -> InvalidRequest:
        text = f"{self._path} is not the output of a batch: line {number} is no result. It is left as it is; give another -o."
        return InvalidRequest(text, field="output_file")

    def _unwritable(self, error: OSError, *, then: str = "") -> Unavailable:
        return Unavailable(f"Cannot write {self._path}: {error.strerror or error}.{then}")


def _new_id() -> str:
    return f"{_ID_PREFIX}{uuid.uuid4().hex}"
