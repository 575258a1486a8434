"""The command line: help, errors of one line, exit codes, and clients without a server."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.grids import pairs
from tests.tetrad.cli.commands import assert_one_line, tetrad
from tetrad.cli.options import add_engine_options, new_parser


def test_help_lists_every_command():
    result = tetrad("--help")

    assert result.returncode == 0
    services = ("frontend", "tokenizer", "engine-core", "worker")
    models, servers = ("pull", "list", "show"), ("serve", "status", "ps", "logs")
    for command in (*models, *servers, "chat", "run-batch", "bench", "complete", "transcribe", "completion", *services):
        assert f"  {command} " in result.stdout


def test_help_groups_commands_by_purpose():
    parts = tetrad("--help").stdout.split("\n\n")
    groups = {title: [line.split()[0] for line in lines] for title, *lines in map(str.splitlines, parts[1:-1])}

    assert list(groups) == ["Serve and use:", "Models:", "Look:", "Measure:", "Shell:", "Services, one by one:"]
    assert groups["Measure:"] == ["bench", "profile"]


def test_help_imports_neither_grpc_nor_typer():
    """It takes 0.07 s without them, and 0.3 s or more with them."""
    program = "import sys; from tetrad.cli import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60).stderr.split()

    assert not {"grpc", "typer", "rich", "pydantic", "structlog"} & set(modules)


def test_a_mistyped_command_brings_the_most_similar_one():
    assert_one_line(tetrad("sevre"), "there is no command 'sevre'", "did you mean serve?")


def test_every_engine_option_says_what_it_does():
    parser = new_parser("serve", "")
    add_engine_options(parser)

    assert not [action.dest for action in parser._actions if not action.help]


def test_help_of_serve_shows_the_services_own_defaults():
    text = " ".join(tetrad("serve", "--help").stdout.split())

    assert "Maximum number of requests that run at the same time. (default: 256)" in text
    assert "Number of tokens per KV cache block; a power of two. (default: 16)" in text


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("TETRAD_ENGINE_CORE_MAX_NUM_SEQ", "did you mean TETRAD_ENGINE_CORE_MAX_NUM_SEQS?"),
        ("TETRAD_WORKER_THREAD", "did you mean TETRAD_WORKER_THREADS?"),
        ("TETRAD_CACHE_DIRS", "did you mean TETRAD_CACHE_DIR?"),
        ("TETRAD_X", "see --help"),
    ],
)
def test_a_variable_that_no_service_knows_is_one_line(monkeypatch, variable, hint):
    monkeypatch.setenv(variable, "1")

    assert_one_line(tetrad("serve", "--port", "0"), f"{variable}: there is no such setting", hint)


def test_an_unknown_command_is_one_line():
    assert_one_line(tetrad("sing"), "sing", "--help")


@pytest.mark.parametrize(("arguments", "unbuffered"), pairs([["--help"], ["status", "--help"], ["ps"]], ["", "1"]))
def test_a_reader_that_has_closed_the_pipe_ends_a_command_quietly(arguments, unbuffered):
    """As in `tetrad ps | true`."""
    reader, writer = os.pipe()
    os.close(reader)

    with os.fdopen(writer) as out:
        command = [sys.executable, "-m", "tetrad.cli", *arguments]
        variables = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        result = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, timeout=60, env=variables)

    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "unbuffered"),
    [
        pytest.param(["--version"], "", id="a line"),
        pytest.param(["--version"], "1", id="a line without a buffer"),
        pytest.param(["completion", "bash"], "", id="more than a buffer"),
        # Its first write fails at once, as that of a line does.
        pytest.param(["completion", "bash"], "1", id="much without a buffer", marks=pytest.mark.exhaustive),
    ],
)
def test_an_output_that_cannot_be_written_is_one_line(arguments, unbuffered):
    with Path("/dev/full").open("w") as out:
        command = [sys.executable, "-m", "tetrad.cli", *arguments]
        variables = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        result = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, timeout=60, env=variables)

    assert_one_line(result, "the output cannot be written: No space left on device")
    assert result.returncode == 1


def test_a_command_needs_no_standard_streams():
    """As in `tetrad serve <&- >&- 2>&-`: it comes as far as with them, here to a model that does not fit."""
    command = [sys.executable, "-m", "tetrad.cli", "serve", "--port", "0", "--device", "sim", "--kv-cache-memory-gib", "500"]

    result = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command], timeout=60, check=False)

    assert result.returncode == 78


def test_version():
    assert tetrad("--version").stdout.startswith("tetrad ")


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        (("serve", "--max-num-seq", "3"), "--max-num-seqs"),
        (("serve", "--block-sise=16"), "--block-size"),
        (("chat", "--sede", "1"), "--seed"),
        (("tokenizer", "--listne", "127.0.0.1:0"), "--listen"),
    ],
)
def test_a_mistyped_flag_is_one_line_that_names_the_one_that_was_meant(command, meant):
    result = tetrad(*command)

    assert_one_line(result, f"did you mean {meant}?", "--help")
    assert result.returncode == 2


@pytest.mark.parametrize("command", [("chat", "-q", "hi"), ("complete", "hi")])
def test_without_a_server_a_client_says_how_to_start_one(command):
    assert_one_line(tetrad(*command, "--url", "http://127.0.0.1:9"), "http://127.0.0.1:9", "tetrad serve")


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "inf"])
def test_a_watch_needs_a_time_between_updates(interval):
    arguments = ("status", "--watch", "--interval-s", interval, "--url", "http://127.0.0.1:9")

    assert_one_line(tetrad(*arguments), "--interval-s must be more than 0 and finite", interval)


def test_status_of_nothing_tells_so():
    result = tetrad("status", "--url", "http://127.0.0.1:9")

    assert result.returncode == 1
    assert "not ready" in result.stderr


@pytest.mark.parametrize(("command", "errors"), pairs(["complete", "chat"], ["strict", "surrogateescape"]))
def test_a_text_on_stdin_that_is_not_utf_8_is_one_line(command, errors):
    """How Python reads such bytes depends on the locale."""
    arguments = [sys.executable, "-m", "tetrad.cli", command, "--model", "m", "--url", "http://127.0.0.1:9"]
    variables = {**os.environ, "PYTHONIOENCODING": f"utf-8:{errors}"}
    result = subprocess.run(arguments, input=b"caf\xe9", capture_output=True, timeout=60, env=variables)

    assert result.returncode == 78
    assert result.stderr.count(b"\n") == 1, result.stderr.decode()
    assert b"utf-8" in result.stderr


def test_complete_without_a_text_says_so():
    result = subprocess.run(
        [sys.executable, "-m", "tetrad.cli", "complete"], input="", capture_output=True, text=True, timeout=60
    )

    assert_one_line(result, "stdin")
