"""Counts the files and the types that one streamed completion passes, from the request to the answer.

It starts `tetrad serve` with the simulated device and a small random model, sends warm-up requests, then records every call of
the project's Python functions in all processes while each of three equal requests runs. A file or a type counts if all three
requests pass it, so that timers and the end of the start count at most by chance. A type counts if an instance of it holds the
prompt, as text or as token ids, in a field. Messages count too; generated code and third-party packages do not.

    python tools/request_walk.py
    python tools/request_walk.py --root ../another-checkout
    python tools/request_walk.py --functions              with the functions of each file
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PROMPT = "the walk of one request"
_START_S = 120.0
_NUM_REQUESTS = 3
_PAUSE_S = 1.0
"""Seconds before each recorded request: the command still prints its announcement when the stack is healthy."""


@dataclass(frozen=True)
class Walk:
    """The calls that every recorded request makes.

    Attributes:
        files: names of the called functions by file.
        types: full names of the types that held the prompt.
    """

    files: Mapping[str, set[str]]
    types: set[str]


def walk(root: Path, directory: Path) -> Walk:
    """Return the calls of a stack of the checkout at `root` during a request; `directory` is for temporary files."""
    model = _save_model(directory / "model")
    (directory / "on").write_bytes(b"\0")
    (directory / "prompt.json").write_text(json.dumps({"text": PROMPT, "ids": _token_ids(model)}))
    with _serving(root, model, directory) as url:
        _complete(url, "warm-up")
        _complete(url, "warm up again")
        with (directory / "on").open("r+b", buffering=0) as switch:  # all processes map this file, so it must not be truncated
            for number in range(1, _NUM_REQUESTS + 1):
                time.sleep(_PAUSE_S)
                os.pwrite(switch.fileno(), bytes([number]), 0)
                _complete(url, PROMPT)
                os.pwrite(switch.fileno(), b"\0", 0)
    return _read(directory)


def _save_model(directory: Path) -> Path:
    from tests.e2e.tiny_model import save_tiny_model

    directory.mkdir()
    return save_tiny_model(directory)


def _token_ids(model: Path) -> list[int]:
    from tokenizers import Tokenizer

    return list(Tokenizer.from_file(str(model / "tokenizer.json")).encode(PROMPT).ids)


@contextlib.contextmanager
def _serving(root: Path, model: Path, directory: Path) -> Iterator[str]:
    port = _free_port()
    command = [sys.executable, "-m", "tetrad.cli", "serve", str(model), "--served-model-name", "m", "--device", "sim"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tools/walk_recorder"), str(root)]),
        "WALK_DIRECTORY": str(directory),
        "WALK_ROOT": str(root),
        "TETRAD_FRONTEND_RESPONSES_STORE": ":memory:",
    }
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--port", str(port)], cwd=root, env=environment, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_healthy(url, process, directory / "log")
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
            return
        time.sleep(0.2)
    raise RuntimeError(f"The stack did not start:\n{log.read_text()}")


def _complete(url: str, prompt: str) -> None:
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": 8, "stream": True, "temperature": 0.0, "ignore_eos": True}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        response.read()


def _read(directory: Path) -> Walk:
    """Return what stands in the record of every request."""
    found: dict[str, set[str]] = {}
    for line in (directory / "calls").read_text().splitlines():
        number, what = line.split(" ", 1)
        found.setdefault(number, set()).add(what)
    files: dict[str, set[str]] = {}
    types: set[str] = set()
    for what in set.intersection(*found.values()):
        kind, name, *function = what.split(" ")
        if kind == "type":
            types.add(name)
        else:
            files.setdefault(name, set()).update(function)
    return Walk(files, types)


def as_text(passed: Walk, *, functions: bool) -> Iterator[str]:
    """Yield the lines of the report."""
    by_service = Counter(path.split("/")[0] for path in passed.files)
    counts = ", ".join(f"{name} {count}" for name, count in sorted(by_service.items()))
    yield f"{len(passed.files)} files ({counts}), {len(passed.types)} types"
    for path in sorted(passed.files):
        yield f"  {path}" + (f": {', '.join(sorted(passed.files[path]))}" if functions else "")
    yield "types that hold the prompt:"
    yield from (f"  {name}" for name in sorted(passed.types))


def main() -> None:
    """Count the files and types, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout")
    parser.add_argument("--functions", action="store_true", help="show the functions of each file")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory() as directory:
        passed = walk(args.root.resolve(), Path(directory))
    sys.stdout.write("\n".join([*as_text(passed, functions=args.functions), ""]))


if __name__ == "__main__":
    main()
