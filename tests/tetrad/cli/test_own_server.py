"""The own server of a command: a signal while its files are downloaded, and options that a server at a URL does not need."""

import json
import signal
import subprocess
import sys

import pytest

from tests.tetrad.cli.commands import assert_one_line, tetrad

HANGS = """
import json, os, sys, threading
from tetrad.cli import main
from tetrad.library.engine_args import EngineArgs

def download(self, **_):
    os.kill(os.getpid(), int(sys.argv[1]))
    threading.Event().wait()

EngineArgs.stack_settings = download
sys.exit(main([*json.loads(sys.argv[2]), "--device", "sim"]))
"""


@pytest.mark.parametrize(
    ("command", "number", "code", "words"),
    [
        ("run-batch", signal.SIGTERM, 143, "Stopped; run the same command again to go on."),
        ("run-batch", signal.SIGINT, 130, "Stopped; run the same command again to go on."),
        ("bench", signal.SIGTERM, 143, ""),
        ("serve", signal.SIGTERM, 143, ""),
    ],
)
def test_a_signal_does_not_wait_for_a_download(tmp_path, command, number, code, words):
    source = tmp_path / "in.jsonl"
    source.write_text('{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}\n')
    files = {"run-batch": ["-i", str(source), "-o", str(tmp_path / "out.jsonl")], "serve": ["--port", "0"]}
    script = [sys.executable, "-c", HANGS, str(int(number)), json.dumps([command, *files.get(command, [])])]

    result = subprocess.run(script, capture_output=True, text=True, timeout=60, check=False)

    assert result.returncode == code, result.stderr
    assert words in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["bench", "run-batch"])
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--start-timeout-s", "5"], "With --url, no server is started: leave --start-timeout-s out"),
        (["--device", "sim"], "With --url, the server decides on its model and its engine"),
    ],
)
def test_a_server_at_a_url_refuses_what_only_a_start_needs(tmp_path, command, flags, words):
    source = tmp_path / "in.jsonl"
    source.write_text('{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}\n')
    files = ["-i", str(source), "-o", str(tmp_path / "out.jsonl")] if command == "run-batch" else []

    assert_one_line(tetrad(command, "--url", "http://127.0.0.1:9", *files, *flags), words)
