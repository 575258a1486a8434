"""The commands of docs/contracts.md, kernels.md, recovery.md and security.md, as written.

Commands of minutes are make targets; for these, the command that make would run is checked.
"""

import os
import shlex
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos import __main__ as chaos
from tests.documents import ROOT, Page

SCRIPTS = Path(sys.executable).parent


def commands(page: str, word: str) -> str:
    """Return the one block of docs/`page` that holds `word`."""
    return Page.of(f"docs/{page}").block(word)


def run(text: str, cwd: Path) -> str:
    path = f"{SCRIPTS}:{os.environ['PATH']}"
    call = ["bash", "-euc", text]
    ran = subprocess.run(call, cwd=cwd, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def what_make_would_run(line: str) -> str:
    """Return what a `make` command comes to; values behind it included."""
    asked = shlex.split(line, comments=True)
    # Under `make test` a make of one's own would be taken for a part of that one, and say so.
    alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    told = subprocess.run([asked[0], "-n", *asked[1:]], cwd=ROOT, env=alone, capture_output=True, text=True, check=True).stdout
    return told.strip().splitlines()[-1]


def test_stubs_are_generated_from_the_files_alone(tmp_path):
    (tmp_path / "protos").symlink_to(ROOT / "protos")

    run(commands("contracts.md", "grpc_tools"), tmp_path)
    loaded = run(
        "cd stubs && python -c 'from tetrad.v1 import inference_pb2_grpc as g; print(g.InferenceServiceStub.__name__)'",
        tmp_path,
    )

    assert loaded == "InferenceServiceStub\n"


def test_the_contracts_are_checked_by_buf():
    asked = commands("contracts.md", "make check-protos")

    told = subprocess.run(
        ["bash", "-c", asked.replace("make", "make -n", 1)], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert "buf lint" in told.stdout
    assert "buf breaking" in told.stdout


def test_the_kernels_are_tested_under_sanitizers():
    assert commands("kernels.md", "make") == "make sanitize\n"
    assert "tests/worker_svc/native/test_attention.py" in what_make_would_run("make sanitize")


def test_a_chaos_run_takes_what_the_page_gives_it():
    """tests/chaos/test_chaos.py runs it; here it is asked for help instead, behind the page's arguments."""
    command = commands("recovery.md", "python -m tests.chaos").strip()

    assert "usage:" in run(f"{command} --help", ROOT)


def test_chaos_takes_what_the_page_gives_make(monkeypatch, capsys):
    """In this process: the program's imports take seconds, and the page has many lines."""
    lines = commands("recovery.md", "make chaos").strip().splitlines()

    for line in lines:
        command, arguments = what_make_would_run(line).split("-m tests.chaos ")
        monkeypatch.setattr(sys, "argv", ["tests.chaos", *shlex.split(arguments), "--help"])
        with pytest.raises(SystemExit) as ended:
            chaos.main()

        assert command == ".venv/bin/python "
        assert ended.value.code == 0, capsys.readouterr().err
        assert "usage:" in capsys.readouterr().out


def test_the_authority_that_openssl_makes_signs_what_a_server_shows(tmp_path):
    run(commands("security.md", "openssl"), tmp_path)

    said = run("openssl verify -CAfile ca.crt worker.crt", tmp_path)
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(tmp_path / "worker.crt", tmp_path / "worker.key")

    assert said == "worker.crt: OK\n"
