"""Profile cpu: started, called and stopped as docs/deployment.md shows."""

import json
import re
import shlex
import time

import httpx
import pytest
import yaml

from tests.compose.project import ROOT
from tests.documents import Page

SERVICES = ("frontend", "tokenizer", "engine-core", "worker")
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
PAGE = Page.of("docs/deployment.md")
START, ASK, LOOK = PAGE.section("Quick start").blocks()
DOWN_S = 15


@pytest.fixture(scope="module")
def stack(make_project):
    project = make_project("cpu")
    project.started_at = time.monotonic()
    project.run(START)
    return project


def test_the_quick_start_ends_in_an_answer(stack, tell):
    assert "Paris" in stack.run(ASK)

    tell(f"ready and answered {time.monotonic() - stack.started_at:.1f} s after `up`")


def test_the_logs_tell_of_the_request(stack):
    [show] = PAGE.section("Logs").blocks()
    asked = httpx.post(f"{stack.url}/v1/completions", json={"prompt": "x", "max_tokens": 4}, timeout=60)

    # Compose puts the container's name before each line.
    lines = re.findall(r"\{.*\}", stack.run(show))

    assert asked.headers["X-Request-Id"] in [json.loads(line)["request_id"] for line in lines]


def test_what_needs_processes_of_its_own_works_without_rights(stack):
    """Grammars and templates are tried out in sandboxes, which start from a read-only file system, too."""
    body = {"prompt": "A colour:", "max_tokens": 16, "structured_outputs": {"choice": ["red", "blue"]}}

    answer = httpx.post(f"{stack.url}/v1/completions", json=body, timeout=60).json()

    assert answer["choices"][0]["text"] in ("red", "blue")


def test_responses_are_kept_in_the_volume(stack):
    body = {"input": "Say hello.", "max_output_tokens": 8}
    made = httpx.post(f"{stack.url}/v1/responses", json=body, timeout=60).json()

    assert httpx.get(f"{stack.url}/v1/responses/{made['id']}").json()["output"] == made["output"]
    assert "responses.sqlite3" in stack.python("frontend", "import os; print(os.listdir('/var/lib/tetrad'))")


@pytest.mark.parametrize("service", SERVICES)
def test_prometheus_finds_the_metrics_of_a_service(stack, service):
    other = "frontend" if service != "frontend" else "tokenizer"

    told = stack.python(other, f"import urllib.request as r; print(r.urlopen('http://{service}:9464/metrics').read().decode())")

    assert "\ntetrad:" in told


@pytest.mark.parametrize("service", SERVICES)
def test_the_health_check_passes(stack, service):
    stack.run(ASK)
    _, *command = COMPOSE[service]["healthcheck"]["test"]

    stack.run(f"docker exec {stack.container(service)} {shlex.join(command)}")


@pytest.mark.parametrize("service", SERVICES)
def test_a_container_can_change_nothing_and_get_no_rights(stack, service):
    status = stack.python(service, "print(open('/proc/self/status').read())")
    fields = dict(line.split(":\t") for line in status.strip().splitlines() if ":\t" in line)
    tried = stack.python(
        service, "import os; print([os.access(path, os.W_OK) for path in ('/', '/opt/tetrad', '/etc', '/tmp')])"
    )

    assert (int(fields["CapEff"], 16), int(fields["CapBnd"], 16), fields["NoNewPrivs"]) == (0, 0, "1")
    assert tried == "[False, False, False, True]\n"


def test_down_takes_no_longer_than_15_seconds_under_load(stack, tell):
    """The last test of this project."""
    look, _ = LOOK.rsplit("docker compose down", 1)
    stack.run(look)
    body = {"prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True, "stream": True}

    with httpx.stream("POST", f"{stack.url}/v1/completions", json=body, timeout=60) as answer:
        next(answer.iter_lines())
        took_s = stack.down()

    tell(f"down took {took_s:.1f} s")
    assert took_s < DOWN_S
    assert stack.containers() == []
