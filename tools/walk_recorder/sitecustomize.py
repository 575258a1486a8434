"""Records the functions that a process calls while the recording is on, for tools/request_walk.py.

A process whose PYTHONPATH has this folder loads it at start. The first byte of the file "on" in $WALK_DIRECTORY is the number
of the recorded request, or 0 while no request is recorded. The process appends a line to WALK_DIRECTORY/calls for each first
occurrence during a request: "NUMBER call FILE FUNCTION", and "NUMBER type NAME" of each argument or result that holds the
prompt, as text or as token ids, in a field.
"""

import json
import mmap
import os
import sys
import threading
from array import array
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_directory = Path(os.environ["WALK_DIRECTORY"])
_root = os.environ["WALK_ROOT"] + "/"
_prompt: dict[str, Any] = json.loads((_directory / "prompt.json").read_text())
_packed_ids = array("I", _prompt["ids"]).tobytes()
_OURS = ("tetrad.",)
_GENERATED = ("_pb2.py", "_pb2_grpc.py")


class _Recorder:
    """Takes profile events of all threads: a set and an append of one short line need no lock."""

    def __init__(self) -> None:
        with (_directory / "on").open("rb") as file:
            self._on = mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ)
        self._found = os.open(_directory / "calls", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._written: set[str] = set()
        self._paths: dict[CodeType, str] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Note one call or return of a Python function of the project."""
        number = self._on[0]
        if number == 0 or event not in ("call", "return"):
            return
        code = frame.f_code
        path = self._paths.get(code)
        if path is None:
            path = self._paths[code] = _project_path(code)
        if not path:
            return
        self._write(f"{number} call {path} {code.co_qualname}\n")
        values = [argument] if event == "return" else list(frame.f_locals.values())[: code.co_argcount + code.co_kwonlyargcount]
        for value in values:
            self._note_types(number, value)

    def _note_types(self, number: int, value: Any) -> None:
        for each in _with_parts(value):
            if type(each).__module__.startswith(_OURS) and _holds_prompt(each):
                self._write(f"{number} type {type(each).__module__}.{type(each).__qualname__}\n")

    def _write(self, line: str) -> None:
        if line not in self._written:
            self._written.add(line)
            os.write(self._found, line.encode())


def _with_parts(value: Any) -> list[Any]:
    """Return a value, or the items of a short sequence; a message with all messages in it."""
    if hasattr(value, "ListFields"):
        fields = [field for _, field in value.ListFields()]
        repeated = [list(field) for field in fields if hasattr(field, "add")]
        parts = [*(field for field in fields if hasattr(field, "ListFields")), *(each for some in repeated for each in some)]
        return [value, *(found for part in parts for found in _with_parts(part))]
    return [found for each in value for found in _with_parts(each)] if _is_short(value) else [value]


def _is_short(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) < 8 and not hasattr(value, "_fields")


def _project_path(code: CodeType) -> str:
    path = os.path.realpath(code.co_filename)
    is_source = path.startswith(_root) and path.endswith(".py") and not path.endswith(_GENERATED)
    if not is_source or "/.venv/" in path or code.co_name == "<module>":
        return ""
    return path.removeprefix(_root)


def _holds_prompt(value: Any) -> bool:
    return any(_is_prompt(field) for field in _fields(value))


def _fields(value: Any) -> list[Any]:
    if hasattr(value, "ListFields"):
        return [field for _, field in value.ListFields()]
    found = list(getattr(value, "__dict__", {}).values())
    for kind in type(value).__mro__:
        slots = getattr(kind, "__slots__", ())
        found += [getattr(value, name, None) for name in ((slots,) if isinstance(slots, str) else slots)]
    return found


def _is_prompt(field: Any) -> bool:
    if isinstance(field, str):
        return bool(field == _prompt["text"])
    if isinstance(field, bytes):
        return field.startswith(_packed_ids)
    ids = _prompt["ids"]
    try:
        return len(field) >= len(ids) and [int(each) for each in field[: len(ids)]] == ids
    except (TypeError, ValueError, KeyError, IndexError):
        return False


_recorder = _Recorder()
threading.setprofile(_recorder)
sys.setprofile(_recorder)
