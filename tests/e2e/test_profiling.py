"""Profiles on demand: over HTTP by operators, by the command line and by programs; a file for each service."""

import json
import subprocess
import sys
from pathlib import Path

import httpx

from tetrad import LLM

SERVICES = ("frontend", "engine-core", "worker")
CALL_OF = {"frontend": "process step", "engine-core": "schedule", "worker": "execute"}
"""What each service does for every request."""


def names_in(path) -> set[str]:
    return {event["name"] for event in json.loads(Path(path).read_text())["traceEvents"]}


def complete(server, **headers: str) -> None:
    body = {"prompt": "Hello", "max_tokens": 8}
    assert httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=60).status_code == 200


def test_a_profile_is_a_file_for_each_service(sim_server):
    assert httpx.post(f"{sim_server.url}/start_profile", params={"prefix": "noon"}).json() == {"status": "recording"}
    assert httpx.post(f"{sim_server.url}/start_profile").status_code == 409
    complete(sim_server)

    paths = httpx.post(f"{sim_server.url}/stop_profile").json()["paths"]

    assert [Path(path).name.rpartition("-")[0] for path in paths] == [f"noon-{service}" for service in SERVICES]
    assert all(CALL_OF[service] in names_in(path) for service, path in zip(SERVICES, paths, strict=True))
    assert httpx.post(f"{sim_server.url}/stop_profile").status_code == 404


def test_the_command_line_fetches_the_trace_of_a_service(sim_server, tmp_path):
    output = tmp_path / "trace.json"
    command = [sys.executable, "-m", "tetrad.cli", "profile", "--url", sim_server.url, "--seconds", "1.5"]
    with subprocess.Popen([*command, "--service", "engine-core", "-o", str(output)], stdout=subprocess.PIPE, text=True) as run:
        while run.poll() is None:
            complete(sim_server)
        said = run.stdout.read()

    assert run.returncode == 0
    assert str(output) in said
    assert CALL_OF["engine-core"] in names_in(output)


def test_a_program_profiles_its_engine(sim_server):
    with LLM(target=sim_server.stack_directory()) as llm:
        llm.start_profile("mine")
        complete(sim_server)
        paths = llm.stop_profile()

    assert [CALL_OF[service] in names_in(path) for service, path in zip(SERVICES[1:], paths, strict=True)] == [True, True]
