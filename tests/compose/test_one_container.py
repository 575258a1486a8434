"""The image of all services: built and run as docs/deployment.md shows, without rights and with a read-only file system."""

import contextlib
import json
import re
import shlex
import subprocess
import time
import uuid
from collections.abc import Iterator

import httpx
import pytest
import yaml

from tests.compose.conftest import BASE, BUILD, ENGINE
from tests.compose.project import READY_TIMEOUT_S, ROOT, free_port
from tests.compose.test_images import documented_mb, python, size_mb
from tests.documents import Page

PAGE = Page.of("docs/deployment.md").section("One container")
BUILD_IT = PAGE.block("docker build").splitlines()[0]
RUN_IT = PAGE.block("--read-only").replace("\\\n", "")
[HEALTH_CHECK] = re.findall(
    r"^HEALTHCHECK [^[]*CMD (\[.*\])$", (ROOT / "Dockerfile").read_text().replace("\\\n", ""), re.MULTILINE
)
STOP_S = 10


def engine(*arguments: str, **options) -> str:
    return subprocess.run([ENGINE, *arguments], check=True, stdout=subprocess.PIPE, text=True, **options).stdout


@pytest.fixture(scope="module")
def image() -> str:
    assert BUILD_IT == "docker build -t tetrad ."
    subprocess.run(f"{BUILD} -t tetrad .", shell=True, cwd=ROOT, check=True)
    return "tetrad"


@pytest.fixture(scope="module")
def container(image, smollm2) -> Iterator[tuple[str, str]]:
    """Run the page's command with fewest rights, under another name and port; yield the container's name and its URL."""
    name, port = f"tetrad-test-{uuid.uuid4().hex[:8]}", free_port()
    models = subprocess.run(
        ["tar", "-C", str(smollm2.parents[2]), "-c", str(smollm2.relative_to(smollm2.parents[2]))],
        check=True,
        stdout=subprocess.PIPE,
    )
    engine("volume", "create", name)
    try:
        load = [
            "run",
            "--rm",
            "-i",
            "-v",
            f"{name}:/var/cache/tetrad",
            "--entrypoint",
            "tar",
            image,
            "-C",
            "/var/cache/tetrad",
            "-x",
        ]
        subprocess.run([ENGINE, *load], input=models.stdout, check=True)
        command = RUN_IT.replace("--name tetrad", f"--name {name}").replace("tetrad-models:", f"{name}:")
        _, *arguments = shlex.split(command.replace(":8000:", f":{port}:"))
        engine(*arguments)
        wait_ready(name, f"http://127.0.0.1:{port}")
        yield name, f"http://127.0.0.1:{port}"
    finally:
        engine("rm", "-f", name)
        engine("volume", "rm", "-f", name)


def wait_ready(name: str, url: str) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        time.sleep(0.2)
    raise AssertionError(f"not ready after {READY_TIMEOUT_S:g} s\n{engine('logs', name, stderr=subprocess.STDOUT)}")


def test_it_answers(container):
    _, url = container
    question = [{"role": "user", "content": "Name the capital of France."}]

    asked = httpx.post(
        f"{url}/v1/chat/completions", json={"messages": question, "max_tokens": 32, "temperature": 0}, timeout=60
    )

    assert "Paris" in asked.json()["choices"][0]["message"]["content"]


def test_it_constrains_outputs_and_keeps_responses_without_rights(container):
    _, url = container
    body = {"prompt": "A colour:", "max_tokens": 16, "structured_outputs": {"choice": ["red", "blue"]}}

    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()
    made = httpx.post(f"{url}/v1/responses", json={"input": "Say hello.", "max_output_tokens": 8}, timeout=60).json()

    assert answer["choices"][0]["text"] in ("red", "blue")
    assert httpx.get(f"{url}/v1/responses/{made['id']}").json()["output"] == made["output"]


def test_its_health_check_passes(container):
    name, _ = container

    engine("exec", name, *json.loads(HEALTH_CHECK))


def test_its_commands_find_the_server(container):
    name, _ = container

    assert "smollm2-135m-instruct" in engine("exec", name, "tetrad", "ps")


def test_it_stops_in_order(container):
    name, _ = container

    engine("stop", "-t", str(STOP_S), name)

    [state] = json.loads(engine("inspect", name))
    assert state["State"]["ExitCode"] == 0


def test_arguments_behind_the_name_are_those_of_serve(image):
    options = yaml.safe_load(engine("run", "--rm", image, "some/model", "--max-num-seqs", "7", "--print-config"))

    assert options["model"] == "some/model"
    assert (options["host"], options["port"], options["max_num_seqs"]) == ("0.0.0.0", 8000, 7)


def test_it_has_a_user_of_its_own_compiled_kernels_and_no_compiler(image):
    found = python(
        image,
        "import os, shutil; from tetrad.worker_svc.native.library import prebuilt_dir\n"
        "print(os.getuid(), len(list(prebuilt_dir().iterdir())), shutil.which('g++'))",
    )

    assert found == "10001 3 None\n"


def test_the_page_tells_its_size(image):
    assert size_mb(image) - size_mb(BASE) == pytest.approx(documented_mb(image), rel=0.15)
