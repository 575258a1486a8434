"""Profiles on demand: over HTTP by operators, by the command line and by programs; a file for each service.

The commands are those of docs/tracing.md.
"""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import httpx

from tests.documents import Page
from tetrad import LLM

PAGE = Page.of("docs/tracing.md")
SERVICES = ("frontend", "engine-core", "worker")
CALL_OF = {"frontend": "process step", "engine-core": "schedule", "worker": "execute"}
"""What each service does for every request."""


def names_in(path) -> set[str]:
    return {event["name"] for event in json.loads(Path(path).read_text())["traceEvents"]}


def complete(server) -> None:
    body = {"prompt": "Hello", "max_tokens": 8}
    assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).status_code == 200


def test_a_profile_is_a_file_for_each_service(sim_server):
    assert httpx.post(f"{sim_server.url}/start_profile", params={"prefix": "noon"}).json() == {"status": "recording"}
    assert httpx.post(f"{sim_server.url}/start_profile").status_code == 409
    complete(sim_server)

    paths = httpx.post(f"{sim_server.url}/stop_profile").json()["paths"]

    assert [Path(path).name.rpartition("-")[0] for path in paths] == [f"noon-{service}" for service in SERVICES]
    assert all(CALL_OF[service] in names_in(path) for service, path in zip(SERVICES, paths, strict=True))
    assert httpx.post(f"{sim_server.url}/stop_profile").status_code == 404


def test_curl_profiles_as_on_the_page(sim_server):
    start, stop = PAGE.block("/start_profile").replace("http://127.0.0.1:8000", sim_server.url).splitlines()

    said = [subprocess.run(["bash", "-euc", line], check=True, capture_output=True).stdout for line in (start, stop)]

    assert json.loads(said[0]) == {"status": "recording"}
    assert len(json.loads(said[1])["paths"]) == len(SERVICES)


def test_the_command_line_fetches_the_trace_of_a_service(sim_server, tmp_path):
    program, *arguments = shlex.split(PAGE.block("tetrad profile"))
    arguments[arguments.index("5")] = "1.5"
    command = [sys.executable, "-m", f"{program}.cli", *arguments, "--url", sim_server.url]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as run:
        while run.poll() is None:
            complete(sim_server)
        said = run.stdout.read()

    assert run.returncode == 0
    assert "Wrote trace.json" in said
    assert [Path(path).is_file() for path in said.splitlines()[1:]] == [True] * len(SERVICES)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]
    assert CALL_OF["worker"] in names_in(tmp_path / "trace.json")


def test_a_worker_records_some_steps(sim_server):
    with LLM(target=sim_server.stack_directory()) as llm:
        llm.start_profile("few", delay_iterations=2, max_iterations=3)
        complete(sim_server)
        paths = llm.stop_profile()

    traces = [json.loads(Path(path).read_text())["traceEvents"] for path in paths]
    [num_steps] = [len([each for each in trace if each.get("name") == CALL_OF["worker"]]) for trace in traces[1:]]
    assert 0 < num_steps <= 3


def test_a_program_profiles_its_engine(sim_server):
    with LLM(target=sim_server.stack_directory()) as llm:
        llm.start_profile("mine")
        complete(sim_server)
        paths = llm.stop_profile()

    assert [CALL_OF[service] in names_in(path) for service, path in zip(SERVICES[1:], paths, strict=True)] == [True, True]
